"""The ring of decisions stays bounded and finds a request's own."""

from __future__ import annotations

from paceline.contracts.decision import Decision, Kind, Reason
from paceline.engine.decisions import DecisionRing, behind, describe


def decision(request_id: int, step: int = 0) -> Decision:
    numbers = {"missing": 3.0, "available": 0.5}
    return Decision(
        time=1.25, step=step, request_id=request_id, kind=Kind.WAIT, reason=Reason.NO_BLOCKS, numbers=numbers, other=9
    )


def test_the_oldest_decisions_give_way_and_are_forgotten_by_request_too() -> None:
    ring = DecisionRing(4)
    for step in range(6):
        ring.record(decision(step % 2, step))
    assert [d.step for d in ring.tail()] == [2, 3, 4, 5]
    assert [d.step for d in ring.of_request(0)] == [2, 4]
    assert (len(ring), ring.num_recorded) == (4, 6)
    for step in range(6, 10):
        ring.record(decision(7, step))
    assert ring.of_request(0) == []
    assert ring.of_request(1) == []
    assert list(ring._by_request) == [7]


def test_the_tail_is_the_newest_and_the_dump_one_line_each() -> None:
    ring = DecisionRing()
    for step in range(10):
        ring.record(decision(step, step))
    assert [d.step for d in ring.tail(3)] == [7, 8, 9]
    assert ring.dump(3).splitlines() == [describe(d) for d in ring.tail(3)]


def test_a_decision_reads_as_one_line_with_its_numbers() -> None:
    assert describe(decision(3, 7)) == "t=1.250 step 7 request 3 wait no_blocks missing=3 available=0.5 (request 9)"


def test_behind_carries_the_reason_of_the_first_in_line() -> None:
    derived = behind(decision(3, 7), 12, 4)
    assert (derived.request_id, derived.reason, derived.other) == (12, Reason.NO_BLOCKS, 3)
    assert derived.numbers == {"behind": 4.0}
