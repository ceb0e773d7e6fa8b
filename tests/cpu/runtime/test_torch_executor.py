"""The torch executor under the real scheduler, with a model that notices any wrong slot, table, position or window."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from tests.fakes.builders import EOS, make_request
from tests.fakes.plans import make_admit, make_plan
from tests.fakes.torch_engines import MIXES, history_executor, make_requests, recompute, torch_engine

from paceline.contracts.request import Request, SamplingParams, expand_choices
from paceline.contracts.step import Logits, SampleInputs, StepPlan, StepResult
from paceline.errors import UnsupportedError
from paceline.runtime.executor import TorchExecutor


class Echo:
    """Drafts the token after the last earlier occurrence of the newest one, and its followers: sometimes right."""

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> list[int]:
        seen = np.flatnonzero(token_ids[:-1] == token_ids[-1])
        found = token_ids[seen[-1] + 1 :] if len(seen) else token_ids[:1]
        return found[:max_drafts].tolist()


class Oracle:
    """Drafts what is drawn next, wrong at every fourth position: many accepted, some turned down."""

    def __init__(self, texts: dict[int, list[int]], requests: list[Request]) -> None:
        self.whole = [r.initial_ids().tolist() + texts[r.request_id] for r in requests]

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> list[int]:
        known = token_ids.tolist()
        for whole in self.whole:
            if whole[: len(known)] == known:
                drafts = whole[len(known) : len(known) + max_drafts]
                return [t if (len(known) + i) % 4 else (t + 1) % 48 for i, t in enumerate(drafts)]
        return []


@functools.cache
def texts_alone(windows: tuple[int | None, ...] = (None,)) -> dict[int, list[int]]:
    """What each of `make_requests()` draws by itself, up to its end."""
    found = {}
    for request in make_requests():
        count = request.sampling.max_tokens
        assert count is not None
        text = recompute(history_executor(400, windows=windows), request, (EOS,), count)
        found[request.request_id] = text_of(text[: text.index(EOS) + 1] if EOS in text else text)
    return found


def text_of(tokens: list[int]) -> list[int]:
    return tokens[:-1] if tokens and tokens[-1] == EOS else tokens


@pytest.mark.parametrize("windows", [(None,), (None, 6), (5, None, 9)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 12, "prefill_chunk_tokens": 5},
        {"num_draft_tokens": 3, "prefill_chunk_tokens": 7},
        {"prefix_caching": False, "num_blocks": 24},
        {"num_blocks": 20, "num_draft_tokens": 2},
    ],
)
def test_any_schedule_gives_the_text_of_one_request_alone(
    windows: tuple[int | None, ...], settings: dict[str, Any]
) -> None:
    options = {"num_blocks": 64, **settings}
    executor = history_executor(options.pop("num_blocks") * len(windows), windows=windows)
    drafter = Echo() if "num_draft_tokens" in options else None
    engine = torch_engine(executor, drafter=drafter, **options)
    requests = make_requests()
    done = engine.run(*requests)
    for request in requests:
        assert text_of(done[request.request_id].token_ids) == texts_alone(windows)[request.request_id]


def test_sampled_text_is_the_same_with_and_without_drafts() -> None:
    requests = make_requests(max_tokens=24)
    plain = torch_engine(history_executor(120)).run(*requests)
    texts = {r.request_id: plain[r.request_id].token_ids for r in requests}
    engine = torch_engine(history_executor(120), num_draft_tokens=4, drafter=Oracle(texts, requests))
    steps = 0
    for request in requests:
        engine.core.submit(request)
    drafted: dict[int, list[int]] = {r.request_id: [] for r in requests}
    while engine.core.has_work:
        steps += 1
        for output in engine.step():
            drafted[output.request_id] += output.token_ids
    assert drafted == texts
    assert steps < 20, "drafts were accepted, so this took fewer steps than tokens"


def test_same_seed_gives_the_same_text_with_1_2_and_8_at_once() -> None:
    texts = set()
    for num in (1, 2, 8):
        requests = [make_request(i, [9, 8, 30], 20, temperature=1.0, seed=77) for i in range(num)]
        for done in torch_engine(history_executor()).run(*requests).values():
            texts.add(tuple(done.token_ids))
    assert len(texts) == 1


def test_choices_with_one_seed_differ_and_can_be_repeated() -> None:
    request = make_request(0, [9, 8, 30, 11, 12], 16, temperature=1.0, seed=5, sampling={"n": 3})
    runs = []
    for _ in range(2):
        done = torch_engine(history_executor()).run(*expand_choices(request, [1, 2]))
        runs.append([tuple(done[i].token_ids) for i in range(3)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


def test_a_choice_that_ends_early_leaves_the_others_streaming() -> None:
    request = make_request(0, [9, 8, 30, 11, 12], 16, temperature=1.0, seed=5, sampling={"n": 3, "ignore_eos": True})
    free = torch_engine(history_executor()).run(*expand_choices(request, [1, 2]))
    first = free[0].token_ids
    stop = next(t for t in first if t not in free[1].token_ids + free[2].token_ids)
    params = {"n": 3, "ignore_eos": True, "stop_token_ids": (stop,)}
    ended = make_request(0, [9, 8, 30, 11, 12], 16, temperature=1.0, seed=5, sampling=params)
    done = torch_engine(history_executor()).run(*expand_choices(ended, [1, 2]))
    assert len(done[0].token_ids) <= first.index(stop) + 1 < 16
    assert [done[i].token_ids for i in (1, 2)] == [free[i].token_ids for i in (1, 2)]


def test_prior_output_counts_for_positions_penalties_and_minimum_length() -> None:
    for mix in MIXES:
        options = {**mix, "sampling": {**mix.get("sampling", {}), "ignore_eos": True}}
        whole = make_request(0, [9, 8, 30], 16, seed=3, **options)
        text = torch_engine(history_executor()).run(whole)[0].token_ids
        moved = make_request(1, [9, 8, 30], 16, seed=3, prior_output=tuple(text[:6]), **options)
        assert text[:6] + torch_engine(history_executor()).run(moved)[1].token_ids == text


def run_plan(executor: TorchExecutor, plan: StepPlan, inputs: SampleInputs | None = None) -> StepResult:
    handle = executor.submit(plan)
    executor.sample(handle, inputs)
    result = executor.poll(handle)
    assert result is not None
    return result


def test_a_row_that_is_not_a_number_faults_alone() -> None:
    executor = history_executor()
    sampled = SamplingParams(seed=1, temperature=1.0)
    admits = [make_admit(0, [5, 6]), make_admit(1, [7]), make_admit(2, [8, 9], sampling=sampled)]
    plan = make_plan(
        1,
        [(0, 0, 2, True), (1, 0, 1, True), (2, 0, 2, True)],
        admits=admits,
        blocks=[(0, 0, 0, 1), (0, 1, 0, 2), (0, 2, 0, 3)],
    )
    clean = run_plan(executor, plan)
    model: Any = history_executor().runner.model
    for broken_row, state in enumerate(([5, 6], [7], [8, 9])):
        executor = history_executor()
        model = executor.runner.model
        value = 7
        for token in state:
            value = (value * 31 + token + 1) % 1_000_003
        model.broken = {float(value)}
        result = run_plan(executor, plan)
        assert [f.row for f in result.faults] == [broken_row]
        assert result.faults[0].code == "nan"
        assert result.num_tokens.tolist() == [int(row != broken_row) for row in range(3)]
        assert result.tokens.tolist() == [t for row, t in enumerate(clean.tokens.tolist()) if row != broken_row]


def test_a_broken_request_ends_with_an_error_and_its_neighbours_do_not_notice() -> None:
    requests = make_requests(4)
    expected = texts_alone()
    executor = history_executor()
    model: Any = executor.runner.model
    value = 7
    for token in requests[2].initial_ids().tolist():
        value = (value * 31 + token + 1) % 1_000_003
    model.broken = {float(value)}
    done = torch_engine(executor).run(*requests)
    assert done[2].reason == "error"
    assert "finite" in (done[2].last.error or "")
    for request_id in (0, 1, 3):
        assert text_of(done[request_id].token_ids) == expected[request_id]


def mask_words(vocab_size: int, allowed: list[int]) -> np.ndarray:
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammar_masks_hold_for_each_draft_position(temperature: float) -> None:
    sampling = SamplingParams(seed=4, temperature=temperature)
    executor = history_executor()
    allowed = [[10], [11], [12, 13]]
    admits = [make_admit(0, [5, 6], sampling=sampling, grammar=True), make_admit(1, [7])]
    plan = make_plan(
        1,
        [(0, 0, 4, True), (1, 0, 1, True)],
        admits=admits,
        blocks=[(0, 0, 0, 1), (0, 1, 0, 2)],
        drafts={0: [10, 11]},
    )
    masks = SampleInputs(mask_row=np.zeros(3, dtype=np.int32), masks=np.stack([mask_words(48, ids) for ids in allowed]))
    result = run_plan(executor, plan, masks)
    assert result.num_tokens.tolist() == [3, 1]
    assert result.tokens.tolist()[:2] == [10, 11]
    assert result.tokens[2] in (12, 13)


def test_no_token_allowed_is_a_fault_of_that_row() -> None:
    executor = history_executor()
    plan = make_plan(
        1,
        [(0, 0, 1, True), (1, 0, 1, True)],
        admits=[make_admit(0, [5], grammar=True), make_admit(1, [7])],
        blocks=[(0, 0, 0, 1), (0, 1, 0, 2)],
    )
    masks = SampleInputs(mask_row=np.zeros(1, dtype=np.int32), masks=mask_words(48, [])[None])
    result = run_plan(executor, plan, masks)
    assert [(f.row, f.code) for f in result.faults] == [(0, "nothing_allowed")]
    assert result.num_tokens.tolist() == [0, 1]


@pytest.mark.parametrize("broken_row", [None, 0, 1, 2, 3])
def test_masks_and_rules_hide_nothing_that_is_not_a_number(broken_row: int | None) -> None:
    """Rows with a mask, with a mask and a rule, with a rule, with neither: each is asked before it is changed."""
    executor = history_executor()
    biased = SamplingParams(seed=4, temperature=1.0, logit_bias={20: 100.0})
    prompts = [[5], [6], [7], [8]]
    admits = [
        make_admit(row, prompt, sampling=biased if row in (1, 2) else SamplingParams(seed=4), grammar=row < 2)
        for row, prompt in enumerate(prompts)
    ]
    plan = make_plan(
        1,
        [(row, 0, 1, True) for row in range(4)],
        admits=admits,
        blocks=[(0, row, 0, 1 + row) for row in range(4)],
    )
    if broken_row is not None:
        model: Any = executor.runner.model
        model.broken = {float((7 * 31 + prompts[broken_row][0] + 1) % 1_000_003)}
    masks = SampleInputs(mask_row=np.asarray([0, 1], np.int32), masks=np.stack([mask_words(48, [11, 12])] * 2))
    result = run_plan(executor, plan, masks)
    assert [(f.row, f.code) for f in result.faults] == ([] if broken_row is None else [(broken_row, "nan")])
    assert result.num_tokens.tolist() == [int(row != broken_row) for row in range(4)]
    tokens = dict(zip(np.flatnonzero(result.num_tokens).tolist(), result.tokens.tolist(), strict=True))
    assert all(tokens.get(row, 11) in (11, 12) for row in (0, 1))
    assert tokens.get(2, 20) == 20


def test_logprobs_are_of_raw_logits_and_cover_accepted_drafts() -> None:
    params = SamplingParams(seed=4, temperature=0.0, logprobs=3, logprob_token_ids=(1, 2), logit_bias={20: 100.0})
    plain = SamplingParams(seed=4, temperature=0.0)
    executor = history_executor()
    plan = make_plan(
        1,
        [(0, 0, 4, True), (1, 0, 1, True)],
        admits=[make_admit(0, [5, 6], sampling=params), make_admit(1, [7], sampling=plain)],
        blocks=[(0, 0, 0, 1), (0, 1, 0, 2)],
        drafts={0: [20, 20]},
    )
    result = run_plan(executor, plan)
    assert result.tokens.tolist()[:3] == [20, 20, 20]
    assert set(result.logprobs) == {0}
    entries = result.logprobs[0]
    assert [e.token_id for e in entries] == [20, 20, 20]
    assert all(len(e.top) == 3 and [t for t, _ in e.extra] == [1, 2] for e in entries)
    assert all(e.logprob < 0.0 and e.rank >= 1 for e in entries), "the bias must not show"
    assert any(e.rank > 1 for e in entries)


def test_prompt_logprobs_come_chunk_by_chunk_and_equal_those_of_one_chunk() -> None:
    prompt = list(range(8, 31))
    found = []
    for settings in ({}, {"prefill_chunk_tokens": 5}, {"prefill_chunk_tokens": 1}):
        request = make_request(0, prompt, 3, sampling={"prompt_logprobs": 2, "logprobs": 1})
        done = torch_engine(history_executor(), **settings).run(request)[0]
        entries = [e for o in done.outputs if o.prompt_logprobs is not None for e in o.prompt_logprobs]
        assert entries[0] is None
        assert [e.token_id for e in entries[1:] if e is not None] == prompt[1:]
        found.append((entries, done.token_ids))
    assert found[0] == found[1] == found[2]


def test_plain_greedy_rows_take_the_short_way_and_mixed_ones_agree() -> None:
    requests = [make_request(i, [9 + i, 8], 12) for i in range(5)]
    plain = torch_engine(history_executor()).run(*requests)
    sampled = make_request(9, [30], 12, temperature=1.0)
    mixed = torch_engine(history_executor()).run(*requests, sampled)
    for request in requests:
        assert plain[request.request_id].token_ids == mixed[request.request_id].token_ids


def test_pooled_states_are_refused_clearly() -> None:
    executor = history_executor()
    plan = make_plan(1, [(0, 0, 1, False)], admits=[make_admit(0, [5])], blocks=[(0, 0, 0, 1)])
    plan.logits[:] = Logits.POOL
    with pytest.raises(UnsupportedError, match="pooled"):
        executor.submit(plan)


def test_shape_counts_positions_draws_and_context() -> None:
    executor = history_executor()
    plan = make_plan(1, [(0, 4, 3, True), (1, 0, 5, False)], drafts={0: [1, 2]})
    shape = executor.shape(plan)
    assert (shape.num_tokens, shape.num_rows, shape.num_sampled, shape.context_tokens) == (8, 2, 3, 4)
    assert shape.attention_pairs == (5 + 6 + 7) + (1 + 2 + 3 + 4 + 5)


@pytest.mark.parametrize(("allowed", "expected"), [([7], 7), ([7, 9], 9)])
def test_a_minimum_does_not_forbid_the_only_end_a_grammar_allows(allowed: list[int], expected: int) -> None:
    sampling = SamplingParams(seed=4, temperature=0.0, min_tokens=5)
    plan = make_plan(
        1,
        [(0, 0, 1, True)],
        admits=[make_admit(0, [5], sampling=sampling, grammar=True, stop_token_ids=(7,))],
        blocks=[(0, 0, 0, 1)],
    )
    masks = SampleInputs(mask_row=np.zeros(1, dtype=np.int32), masks=mask_words(48, allowed)[None])
    result = run_plan(history_executor(), plan, masks)
    assert result.tokens.tolist() == [expected]
    assert not result.faults
