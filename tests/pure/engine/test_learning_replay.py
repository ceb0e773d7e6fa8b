"""Law 5 with a cost model that learns while the engine runs: what it learnt is part of what a replay repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fakes.builders import Built, build, make_layout, make_request

from paceline.contracts.decision import Reason
from paceline.contracts.ports import CostModel
from paceline.cost import LinearStepCost, StepCost, decode_shape, restore
from paceline.engine import EngineCore, begin_journal, replay_file
from paceline.engine.settings import SchedulerSettings
from paceline.errors import EngineError
from paceline.sim import SimulatedExecutor, VirtualClock, simulated_caps

BELIEVED = LinearStepCost(fixed_ms=40.0, per_token_ms=0.05, per_row_ms=0.0, per_context_token_ms=0.0)
TRUE = LinearStepCost(fixed_ms=1.0, per_token_ms=0.2, per_row_ms=0.0, per_context_token_ms=0.0)


def prompt(kind: int, last: int) -> list[int]:
    return [*((7 * i + kind) % 900 for i in range(128)), last]


def recorded(path: Path) -> tuple[Built, StepCost]:
    """Two pairs of requests that share a prefix: one pair before the prices are learnt, one after."""
    clock, cost = VirtualClock(), StepCost.from_prior(BELIEVED)
    caps = simulated_caps(make_layout(512, 16), max_rows=8, max_tokens=64)
    settings = SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=64, prefill_chunk_tokens=32, max_model_len=512)
    built = build(SimulatedExecutor(caps, TRUE, clock), clock, settings, cost=cost)
    built.core = EngineCore(built.scheduler, built.executor, clock, begin_journal(path, built.scheduler, cost.prices))
    for first in (0, 10):
        pair = [make_request(first + i, prompt(first, 900 + i), 4, sampling={"ignore_eos": True}) for i in (0, 1)]
        built.core.submit(pair[0])
        built.step()
        built.core.submit(pair[1])
        while built.core.has_work:
            built.step()
        for other in range(first + 2, first + 6):
            built.core.submit(make_request(other, prompt(50 + other, 0), 20, sampling={"ignore_eos": True}))
        while built.core.has_work:
            built.step()
    built.core.close()
    return built, cost


def test_what_was_learnt_changes_decisions_and_a_replay_makes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    built, cost = recorded(path)
    reasons = {i: [d.reason for d in built.scheduler.decisions.of_request(i)] for i in (1, 11)}
    assert Reason.PREFIX_IN_FLIGHT not in reasons[1]  # as the prior believes, a step is dearer than the prefix
    assert Reason.PREFIX_IN_FLIGHT in reasons[11]
    assert cost.step_ms(decode_shape(1, 100)) < 10.0
    assert len(replay_file(path, restore).digests) > 20


def test_a_replay_that_does_not_learn_leaves_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    recorded(path)

    def unteachable(**prices: Any) -> CostModel:
        cost = restore(**prices)
        assert isinstance(cost, StepCost)
        return cost.frozen()

    with pytest.raises(EngineError, match="left the recording"):
        replay_file(path, unteachable)
