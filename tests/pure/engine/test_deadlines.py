"""Deadlines come due in order, once, and only for those they concern."""

from __future__ import annotations

from tests.pure.engine.driver import request

from paceline.contracts.decision import Reason
from paceline.engine.deadlines import Deadlines
from paceline.engine.request_state import Phase, RequestState
from paceline.engine.stop import StopRules

RULES = StopRules(stop_ids=frozenset(), min_tokens=0, limit=100)


def state(request_id: int, deadline: float | None = None, queue_deadline: float | None = None) -> RequestState:
    made = request(request_id, 3, deadline=deadline, queue_deadline=queue_deadline)
    return RequestState(made, rules=RULES, limit=100, priority=0, tenant="", now=0.0)


def due(deadlines: Deadlines, now: float) -> list[tuple[int, Reason]]:
    found = []
    while (entry := deadlines.pop_due(now)) is not None:
        found.append((entry[0].request_id, entry[1]))
        entry[0].phase = Phase.FINISHED_TIMEOUT
    return found


def test_they_come_due_in_order_of_time() -> None:
    deadlines = Deadlines()
    for each in (state(1, 3.0), state(2, 1.0), state(3, None, 2.0), state(4)):
        deadlines.add(each)
    assert deadlines.next_time() == 1.0
    assert due(deadlines, 0.9) == []
    assert due(deadlines, 2.0) == [(2, Reason.DEADLINE), (3, Reason.QUEUE_TIMEOUT)]
    assert deadlines.next_time() == 3.0
    assert due(deadlines, 9.0) == [(1, Reason.DEADLINE)]
    assert deadlines.next_time() is None


def test_a_queue_timeout_does_not_concern_a_request_that_was_ever_admitted() -> None:
    deadlines = Deadlines()
    admitted = state(1, 5.0, 1.0)
    deadlines.add(admitted)
    admitted.cached_tokens = 0
    assert deadlines.next_time() == 5.0
    assert due(deadlines, 2.0) == []
    assert due(deadlines, 5.0) == [(1, Reason.DEADLINE)]


def test_the_finished_are_forgotten_long_before_their_deadline() -> None:
    deadlines = Deadlines()
    for i in range(1000):
        done = state(i, 1e9)
        deadlines.add(done)
        done.phase = Phase.FINISHED_STOP
        deadlines.trim(num_open=2)
    assert len(deadlines) <= 64 + 8 + 1
