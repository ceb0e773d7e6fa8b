from __future__ import annotations

import pytest
import torch
from tests.fakes.plans import make_admit, make_plan
from tests.fakes.tiny_models import FAMILIES, tiny_executor, tiny_layout, tiny_spec

from paceline.contracts.kv import plan_kv_groups
from paceline.contracts.request import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from paceline.errors import CapacityError
from paceline.runtime.loader.dummy import dummy_weights
from paceline.runtime.peak_memory import peak_memory
from paceline.runtime.worker import Worker
from paceline.runtime.worst_plan import NUM_BLOCKS, StepLimits, worst_plan

CPU = torch.device("cpu")


def tiny_worker(family: str) -> Worker:
    spec = tiny_spec(family)
    return Worker.load(spec, dummy_weights(spec, seed=0, dtype=torch.float32))


def test_peak_memory_sees_what_was_taken_and_given_back() -> None:
    size = 64 << 20
    with peak_memory(CPU) as peak:
        torch.ones(size // 4)
    if peak.num_bytes is None:
        pytest.skip("this system keeps no resettable high-water mark")
    assert 0.9 * size < peak.num_bytes < 1.5 * size
    with peak_memory(CPU) as quiet:
        pass
    assert quiet.num_bytes is not None
    assert quiet.num_bytes < size // 4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_worst_step_runs_before_a_cache_exists_and_leaves_no_trace(family: str) -> None:
    worker = tiny_worker(family)
    layers = list(worker.model.blocks)
    limits = StepLimits(max_rows=6, max_tokens=32, max_model_len=60, chunk_tokens=32)
    found = worker.measure_worst_step(limits, block_size=4)
    assert found.num_rows == 6
    assert found.num_tokens == 32
    assert list(worker.model.blocks) == layers
    assert set(worker.phases) == {"build", "load", "measure"}
    assert all(seconds > 0 for seconds in worker.phases.values())


def test_the_worst_step_measures_more_for_more_rows() -> None:
    worker = tiny_worker("llama")
    worker.model.vocabulary.logits = lambda hidden: torch.zeros(len(hidden), 200_000)  # type: ignore[method-assign]
    worker.spec = tiny_spec("llama", vocab_size=200_000)
    small, large = (
        worker.measure_worst_step(
            StepLimits(max_rows=rows, max_tokens=rows + 8, max_model_len=32, chunk_tokens=8), block_size=4
        )
        for rows in (2, 64)
    )
    if small.peak_bytes is None or large.peak_bytes is None:
        pytest.skip("this system keeps no resettable high-water mark")
    logits = 64 * 200_000 * 4
    assert large.peak_bytes - small.peak_bytes > 1.5 * logits  # the logits and the raw copy kept for logprobs


def test_the_worst_plan_fills_what_the_limits_admit() -> None:
    layout = tiny_layout(tiny_spec("gemma3"), NUM_BLOCKS, 4)
    limits = StepLimits(max_rows=130, max_tokens=500, max_model_len=300, chunk_tokens=256, kv_tokens=10_000)
    plan = worst_plan(limits, layout)
    assert plan.num_rows == 130
    assert plan.num_tokens == 256 + 129
    ends = plan.start + plan.count
    assert ends.max() == 299
    assert ends.sum() <= 10_000
    assert ends[1:].min() > 70
    assert plan.sample.all()
    for admit in plan.admits:
        asked = admit.sampling
        assert (asked.logprobs, asked.prompt_logprobs) == (MAX_LOGPROBS, MAX_LOGPROBS)
        assert len(asked.logprob_token_ids) == MAX_LOGPROB_TOKEN_IDS
    tables = {}
    for group, row, block in zip(plan.new_block_group, plan.new_block_row, plan.new_block_id, strict=True):
        tables.setdefault((int(group), int(row)), []).append(int(block))
    prefixes = [tuple(ids[:2]) for (group, _), ids in tables.items() if group == 0]
    assert len(set(prefixes)) == len(prefixes), "rows that share a prefix would hide what gathering costs"


def test_one_row_and_one_token_are_a_step_too() -> None:
    layout = tiny_layout(tiny_spec("llama"), NUM_BLOCKS, 4)
    plan = worst_plan(StepLimits(max_rows=1, max_tokens=1, max_model_len=2, chunk_tokens=1), layout)
    assert (plan.num_rows, plan.num_tokens) == (1, 1)


def test_a_cache_that_cannot_be_allocated_is_a_capacity_error() -> None:
    worker = tiny_worker("llama")
    groups = plan_kv_groups(worker.spec, 4, 4)
    layout = tiny_layout(worker.spec, (1 << 60) // groups[0].bytes_per_block, 4)
    with pytest.raises(CapacityError, match="allocated"):
        worker.allocate_kv(layout)


def test_caps_say_what_the_executor_can_do() -> None:
    executor = tiny_executor("qwen3", 20, 3, 17)
    caps = executor.caps
    assert (caps.max_rows, caps.max_tokens, caps.vocab_size, caps.max_in_flight) == (3, 17, 48, 1)
    assert caps.batch_invariant
    assert not tiny_executor("qwen3", 20, numerics="fast").caps.batch_invariant
    plan = make_plan(0, [(0, 0, 3, True)], admits=[make_admit(0, [9, 8, 7])], blocks=[(0, 0, 0, 1)])
    handle = executor.submit(plan)
    executor.sample(handle, None)
    result = executor.poll(handle)
    assert result is not None
    assert result.device_ms > 0
    executor.close()
