"""Which prompts are given up when not all can be in time, and from when on."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine

from paceline.contracts.slo import Slo
from paceline.cost.linear import LinearStepCost

# a prompt of 1,000 tokens takes 50 ms: each of these alone is in time, and all of them are not
COST = LinearStepCost(fixed_ms=5.0, per_token_ms=0.05, per_row_ms=0.05, per_context_token_ms=0.0)
DUE_S = Slo(ttft_s=0.2, tpot_s=0.05)
PROMPTS = ((1, 1000), (2, 1000), (3, 3000))


@pytest.mark.parametrize("begins", [0.0, 0.02])
def test_who_is_given_up_is_late_from_the_plan_on_also_where_its_step_begins_later(begins: float) -> None:
    built = simulated_engine(cost=COST, scheduling_mode="auto")
    for number, length in PROMPTS:
        prompt = np.arange(length) + 5000 * number
        built.scheduler.add(make_request(number, prompt, 8, slo=DUE_S), 0.0)
    queue, prospects = built.scheduler._queue, built.scheduler._builder._prospects
    prospects.look([])
    prospects.cut([], [], 0.0, begins=begins)
    states = {state.request_id: state for state in built.scheduler._life.open.values()}
    assert [number for number, state in states.items() if state.start_by < 0.0] == [3]
    head = queue.peek()
    assert head is not None
    assert head.request_id == 1


def test_nobody_is_given_up_while_all_rows_are_taken() -> None:
    built = simulated_engine(cost=COST, scheduling_mode="auto", max_num_seqs=1)
    built.scheduler.add(make_request(9, np.arange(8) + 1, 8), 0.0)
    built.core.step()
    for number, length in PROMPTS:
        built.scheduler.add(make_request(number, np.arange(length) + 5000 * number, 8, slo=DUE_S), 0.0)
    prospects = built.scheduler._builder._prospects
    prospects.look([])
    prospects.cut([], [], 0.0, begins=0.0)
    assert all(state.start_by >= 0.0 for state in built.scheduler._life.open.values())
