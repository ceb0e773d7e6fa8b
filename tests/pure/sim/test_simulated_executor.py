from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.fakes.builders import simulated_engine
from tests.fakes.plans import column, make_admit, make_plan

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.ports import plan_shape
from paceline.contracts.request import Request, SamplingParams, TracePrompt
from paceline.contracts.step import SampleInputs
from paceline.cost.linear import LinearStepCost
from paceline.errors import UnsupportedError
from paceline.sim import SimulatedExecutor, VirtualClock, seeded_oracle, simulated_caps

LAYOUT = KVLayout(groups=(KVGroupSpec(kind="full", layers=(0,), block_size=4, bytes_per_block=64),), num_blocks=16)
COST = LinearStepCost(fixed_ms=10, per_token_ms=1, per_row_ms=0, per_context_token_ms=0)


def make(depth: int = 1, **options: object) -> tuple[SimulatedExecutor, VirtualClock]:
    clock = VirtualClock()
    caps = simulated_caps(LAYOUT, vocab_size=100, max_in_flight=depth, host_drafts=True)
    return SimulatedExecutor(caps, COST, clock, **options), clock  # type: ignore[arg-type]


def test_a_step_takes_the_time_the_cost_model_says() -> None:
    executor, clock = make()
    handle = executor.submit(make_plan(0, [(0, 0, 5, True)], admits=[make_admit(0, [1] * 5)]))
    executor.sample(handle, None)
    assert clock.now() == 0.0
    result = executor.poll(handle)
    assert result is not None
    assert clock.now() == pytest.approx(0.015)
    assert result.device_ms == pytest.approx(15)


def test_polling_without_waiting_does_not_move_time() -> None:
    executor, clock = make()
    handle = executor.submit(make_plan(0, [(0, 0, 5, True)], admits=[make_admit(0, [1] * 5)]))
    executor.sample(handle, None)
    assert executor.poll(handle, block=False) is None
    clock.sleep(0.02)
    assert executor.poll(handle, block=False) is not None


def test_two_plans_in_flight_run_one_after_the_other() -> None:
    executor, clock = make(depth=2)
    first = executor.submit(make_plan(0, [(0, 0, 5, True)], admits=[make_admit(0, [1] * 5)]))
    executor.sample(first, None)
    second = executor.submit(make_plan(1, [(0, 5, 1, True)], feeds={0: 0}))
    executor.sample(second, None)
    executor.poll(first)
    assert clock.now() == pytest.approx(0.015)
    executor.poll(second)
    assert clock.now() == pytest.approx(0.015 + 0.011)


def test_tokens_depend_on_seed_request_and_position_alone() -> None:
    draw = seeded_oracle(100, seed=3)
    row = make_admit(0, [1, 2])
    elsewhere = make_admit(5, [9] * 7, request_id=row.request_id)
    assert [draw(row, p) for p in range(20)] == [draw(elsewhere, p) for p in range(20)]
    assert [draw(row, p) for p in range(20)] != [seeded_oracle(100, seed=4)(row, p) for p in range(20)]
    assert [draw(row, p) for p in range(20)] != [draw(make_admit(1, [1, 2]), p) for p in range(20)]


def test_recorded_lengths_end_in_eos_and_nothing_else_does() -> None:
    draw = seeded_oracle(10, eos_token_id=7, output_lengths={100: 50})
    tokens = [draw(make_admit(0, [1]), p) for p in range(50)]
    assert tokens[-1] == 7
    assert 7 not in tokens[:-1]
    assert set(tokens) == set(range(10))


def test_lengths_without_an_end_token_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="without an end"):
        seeded_oracle(10, output_lengths={1: 5})


def test_drafts_are_accepted_while_they_equal_what_is_drawn() -> None:
    executor, _ = make()
    admit = make_admit(0, [1, 2, 3])
    draw = seeded_oracle(100)
    truth = [draw(admit, p) for p in range(4)]
    drafts = [truth[0], truth[1], (truth[2] + 1) % 100]
    handle = executor.submit(make_plan(0, [(0, 0, 6, True)], admits=[admit], drafts={0: drafts}))
    executor.sample(handle, None)
    result = executor.poll(handle)
    assert result is not None
    assert result.tokens.tolist() == truth[:3]
    assert result.num_tokens.tolist() == [3]


def test_a_row_that_does_not_reach_its_end_draws_nothing() -> None:
    executor, _ = make()
    handle = executor.submit(make_plan(0, [(0, 0, 3, False)], admits=[make_admit(0, [1] * 5)]))
    executor.sample(handle, None)
    result = executor.poll(handle)
    assert result is not None
    assert len(result.row) == 0


def test_the_shape_counts_tokens_rows_context_and_pairs() -> None:
    plan = make_plan(0, [(0, 10, 1, True), (1, 4, 3, False)], admits=[make_admit(0, [1] * 11), make_admit(1, [1] * 9)])
    shape = plan_shape(plan)
    assert (shape.num_tokens, shape.num_rows, shape.num_sampled, shape.context_tokens) == (4, 2, 1, 14)
    assert shape.attention_pairs == 11 + (5 + 6 + 7)


def test_a_recorded_trace_runs_without_ids_and_hits_the_prefix_it_names() -> None:
    built = simulated_engine(block_size=4, output_lengths={0: 3, 1: 9})
    prompts = [TracePrompt(num_tokens=30, block_hashes=(5, 6, tail), hash_block_size=8) for tail in (7, 8)]
    for i, prompt in enumerate(prompts):
        built.core.submit(Request(request_id=i, prompt=prompt, sampling=SamplingParams(max_tokens=50, seed=0)))
        found = built.finish()[i]
        assert len(found.token_ids) == (3, 9)[i]
        assert found.reason == "stop"
        assert found.last.usage is not None
        assert found.last.usage.cached_tokens == (0, 16)[i]


def test_device_drafts_and_masks_are_refused() -> None:
    caps = msgspec.structs.replace(simulated_caps(LAYOUT), spec_kinds=("device",))
    with pytest.raises(UnsupportedError, match="device drafter"):
        SimulatedExecutor(caps, COST, VirtualClock())
    executor, _ = make()
    handle = executor.submit(make_plan(0))
    with pytest.raises(UnsupportedError, match="no masks"):
        executor.sample(handle, SampleInputs(mask_row=column([0]), masks=np.zeros((1, 4), dtype=np.uint32)))
