"""The fake must be harsh: each way of handling blocks wrongly has to show."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes.plans import column, make_admit, make_plan
from tests.fakes.scripted_executor import BlockMixUpError, ScriptedExecutor, scripted_caps
from tests.fakes.toy_model import Draw, ToyDrafter, ToyModel

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.request import SamplingParams
from paceline.contracts.step import SampleInputs, StepPlan, StepResult

WINDOWS = (None, 5)
MODEL = ToyModel(40, WINDOWS)
PROMPT = [3, 1, 4, 1, 5, 9]


def make(depth: int = 1, **options: object) -> ScriptedExecutor:
    groups = tuple(
        KVGroupSpec(kind="sliding" if w else "full", layers=(i,), block_size=4, bytes_per_block=64, window=w)
        for i, w in enumerate(WINDOWS)
    )
    layout = KVLayout(groups=groups, num_blocks=20)
    caps = scripted_caps(layout, vocab_size=40, depth=depth, spec_kinds=("host", "device"))
    return ScriptedExecutor(MODEL, caps, **options)  # type: ignore[arg-type]


def run(executor: ScriptedExecutor, plan: StepPlan, inputs: SampleInputs | None = None) -> StepResult:
    handle = executor.submit(plan)
    executor.sample(handle, inputs)
    result = executor.poll(handle)
    assert result is not None
    return result


BLOCKS = [(0, 0, 0, 3), (0, 0, 1, 9), (1, 0, 0, 5), (1, 0, 1, 2)]  # two per group, scattered
TRUTH = MODEL.generate(PROMPT, Draw(SamplingParams(temperature=0.0), 0, len(PROMPT), ()), 6)


def prefill(executor: ScriptedExecutor) -> int:
    result = run(
        executor,
        make_plan(0, [(0, 0, 6, True)], admits=[make_admit(0, PROMPT)], blocks=BLOCKS),
    )
    return int(result.tokens[0])


def test_chunked_and_paged_it_says_what_the_model_says_whole() -> None:
    executor = make()
    first = run(executor, make_plan(0, [(0, 0, 4, False)], admits=[make_admit(0, PROMPT)], blocks=BLOCKS))
    assert len(first.row) == 0
    tokens = [int(run(executor, make_plan(1, [(0, 4, 2, True)])).tokens[0])]
    tokens += [int(run(executor, make_plan(step, [(0, 4 + step, 1, True)])).tokens[0]) for step in (2, 3)]
    assert tokens == TRUTH[:3]


def test_noise_in_a_block_that_is_read_shows() -> None:
    executor = make()
    prefill(executor)
    executor.poison([3])
    with pytest.raises(BlockMixUpError, match="reads slots"):
        run(executor, make_plan(1, [(0, 6, 1, True)]))


def test_a_window_does_not_read_what_it_no_longer_sees() -> None:
    executor = make()
    tokens = [prefill(executor)]
    tokens.append(int(run(executor, make_plan(1, [(0, 6, 1, True)])).tokens[0]))
    tokens.append(int(run(executor, make_plan(2, [(0, 7, 1, True)])).tokens[0]))
    executor.poison([5])  # positions 0 to 3 of the sliding group; position 8 sees 4 to 8
    blocks = [(0, 0, 2, 11), (1, 0, 2, 12)]
    tokens.append(int(run(executor, make_plan(3, [(0, 8, 1, True)], blocks=blocks)).tokens[0]))
    assert tokens == TRUTH[:4]


def test_another_prefix_with_the_same_last_tokens_gives_other_text() -> None:
    assert MODEL.hidden([1, 2, 3, 4, 5, 6, 7, 8])[-1] != MODEL.hidden([2, 2, 3, 4, 5, 6, 7, 8])[-1]


def test_a_missing_block_shows() -> None:
    executor = make()
    with pytest.raises(BlockMixUpError, match="no block"):
        run(executor, make_plan(0, [(0, 0, 6, True)], admits=[make_admit(0, PROMPT)], blocks=BLOCKS[:3]))


def test_a_copied_block_serves_a_fork() -> None:
    executor = make()
    first = prefill(executor)
    fork = [(0, 1, 0, 3), (0, 1, 1, 14), (1, 1, 0, 5), (1, 1, 1, 15)]
    plan = make_plan(1, [(1, 5, 1, True)], admits=[make_admit(1, PROMPT)], blocks=fork, copies=[(9, 14), (2, 15)])
    assert run(executor, plan).tokens.tolist() == [first]


def test_a_fed_token_is_the_one_drawn_by_the_step_in_flight() -> None:
    executor = make(depth=2)
    for step, plan in enumerate(
        (
            make_plan(0, [(0, 0, 6, True)], admits=[make_admit(0, PROMPT)], blocks=BLOCKS),
            make_plan(1, [(0, 6, 1, True)], feeds={0: 0}),
        )
    ):
        executor.submit(plan)
        executor.sample(step, None)
    results = [executor.poll(0), executor.poll(1)]
    assert [int(r.tokens[0]) for r in results if r is not None] == TRUTH[:2]


def test_a_wrong_feed_shows() -> None:
    executor = make(depth=2)
    executor.submit(make_plan(0, [(0, 0, 6, True)], admits=[make_admit(0, PROMPT)], blocks=BLOCKS))
    with pytest.raises(AssertionError, match="feed"):
        executor.submit(make_plan(1, [(0, 6, 1, True)]))


def test_drafts_are_accepted_up_to_the_first_wrong_one() -> None:
    executor = make()
    assert prefill(executor) == TRUTH[0]
    drafts = [TRUTH[1], (TRUTH[2] + 1) % 40]
    blocks = [(0, 0, 2, 11), (1, 0, 2, 12)]
    result = run(executor, make_plan(1, [(0, 6, 3, True)], drafts={0: drafts}, blocks=blocks))
    assert result.tokens.tolist() == TRUTH[1:3]
    after = run(executor, make_plan(2, [(0, 8, 1, True)]))
    assert after.tokens.tolist() == [TRUTH[3]]
    assert (executor.num_drafts, executor.num_accepted) == (2, 1)


def test_device_drafts_are_partly_right() -> None:
    executor = make()
    plan = make_plan(0, [(0, 0, 6, True)], admits=[make_admit(0, PROMPT)], blocks=BLOCKS, want_drafts=4)
    result = run(executor, plan)
    assert result.num_drafts.tolist() == [4]
    hits = sum(a == b for a, b in zip(result.drafts.tolist(), TRUTH[1:5], strict=True))
    assert 0 < hits < 4


def test_host_drafts_are_partly_right() -> None:
    drafts = ToyDrafter(MODEL).propose(column(PROMPT), 6)
    hits = sum(a == b for a, b in zip(drafts, TRUTH, strict=True))
    assert 0 < hits < 6


def test_a_late_mask_rules_the_draw() -> None:
    executor = make()
    handle = executor.submit(
        make_plan(0, [(0, 0, 6, True)], admits=[make_admit(0, PROMPT, grammar=True)], blocks=BLOCKS)
    )
    words = np.zeros((1, 2), dtype=np.uint32)
    words[0, 0] = 1 << 11
    with pytest.raises(AssertionError, match="waits for sample"):
        executor.poll(handle)
    executor.sample(handle, SampleInputs(mask_row=column([0]), masks=words))
    result = executor.poll(handle)
    assert result is not None
    assert result.tokens.tolist() == [11]


def test_min_tokens_keeps_stop_ids_out() -> None:
    executor = make()
    admit = make_admit(0, PROMPT, sampling=SamplingParams(temperature=0.0, min_tokens=2), stop_token_ids=(TRUTH[0],))
    result = run(executor, make_plan(0, [(0, 0, 6, True)], admits=[admit], blocks=BLOCKS))
    assert result.tokens.tolist() != [TRUTH[0]]


def test_a_fault_names_its_row_and_leaves_the_others_right() -> None:
    executor = make(fault=lambda request_id, _step: request_id == 101)
    others = [(g, 1, i, b + 10) for g, _, i, b in BLOCKS]
    result = run(
        executor,
        make_plan(
            0,
            [(0, 0, 6, True), (1, 0, 6, True)],
            admits=[make_admit(0, PROMPT), make_admit(1, PROMPT)],
            blocks=[*BLOCKS, *others],
        ),
    )
    assert [f.row for f in result.faults] == [1]
    assert result.num_tokens.tolist() == [1, 0]
    assert result.tokens.tolist() == TRUTH[:1]
