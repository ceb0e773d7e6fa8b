"""A request whose first token would surely be late is refused at once, if its class says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine

from paceline.contracts.request import Request, expand_choices
from paceline.contracts.slo import Slo
from paceline.cost.linear import LinearStepCost
from paceline.engine.wire import WireError
from paceline.errors import QueueFullError, TooLateError

COST = LinearStepCost(fixed_ms=5.0, per_token_ms=0.05, per_row_ms=0.05, per_context_token_ms=0.0)


def request(request_id: int, prompt: int, ttft_s: float | None = 0.3, **fields: Any) -> Request:
    ids = np.arange(prompt) + 1000 * request_id + 1
    return make_request(request_id, ids % 30_000, 4, slo=Slo(ttft_s=ttft_s), **fields)


@pytest.mark.parametrize("mode", ["fixed", "auto"])
def test_it_is_taken_in_as_long_as_it_can_be_in_time(mode: str) -> None:
    core = simulated_engine(cost=COST, max_num_batched_tokens=512, scheduling_mode=mode).core
    taken = 0
    for i in range(5):  # 51 ms each
        try:
            core.submit(request(i, 1000, refuse_late=True))
        except TooLateError:
            break
        taken += 1
    assert 3 <= taken <= 5
    assert core.scheduler.num_waiting == taken
    with pytest.raises(TooLateError) as refusal:
        core.submit(request(taken, 1000, refuse_late=True))
    error = refusal.value
    assert isinstance(error, QueueFullError)
    assert error.retry_after_s == pytest.approx(0.05 * taken, rel=0.5)
    assert "predicted after 0.3" in str(error)
    decision = core.decisions(taken)[0]
    assert (decision.kind, decision.reason) == ("refuse", "too_late")
    assert decision.numbers["predicted_ms"] > decision.numbers["target_ms"] == pytest.approx(300.0)


def test_others_are_not_refused_and_nothing_changes_by_a_refusal() -> None:
    core = simulated_engine(cost=COST, max_num_batched_tokens=512, scheduling_mode="auto").core
    for i in range(20):
        core.submit(request(i, 1000))
    before = core.stats()
    for number, wish in enumerate(
        ({"ttft_s": 0.3, "refuse_late": True}, {"ttft_s": None, "refuse_late": True}, {"ttft_s": 0.3})
    ):
        late = request(50 + number, 1000, **wish)
        if wish.get("refuse_late") and wish["ttft_s"]:
            with pytest.raises(TooLateError):
                core.submit(late)
            assert core.stats().num_waiting == before.num_waiting
        else:
            core.submit(late)
            core.abort(50 + number)


def test_all_choices_of_a_call_are_refused_or_none() -> None:
    core = simulated_engine(cost=COST, max_num_batched_tokens=512, scheduling_mode="auto").core
    with pytest.raises(TooLateError):
        core.submit_all(expand_choices(request(0, 3000, refuse_late=True, ttft_s=0.1), [1, 2]))
    assert core.scheduler.num_waiting == 0
    core.submit_all(expand_choices(request(0, 3000, refuse_late=True, ttft_s=0.5), [1, 2, 3]))
    assert core.scheduler.num_waiting == 4  # one prompt for all of them


def test_the_time_to_come_back_travels() -> None:
    error = WireError.of(TooLateError("late", retry_after_s=2.5, seen="x", fix="y")).rebuild()
    assert isinstance(error, TooLateError)
    assert error.retry_after_s == 2.5
    assert WireError.of(QueueFullError("full")).retry_after_s is None
