from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.sim.events import EventHeap, EventKind


def test_ties_go_by_kind_then_number_then_order() -> None:
    heap = EventHeap()
    heap.push(1.0, EventKind.STEP, 0, "step of replica 0")
    heap.push(1.0, EventKind.ARRIVAL, 7, "request 7")
    heap.push(1.0, EventKind.ARRIVAL, 3, "request 3")
    heap.push(1.0, EventKind.CLIENT, 9, "first")
    heap.push(1.0, EventKind.CLIENT, 9, "second")
    heap.push(1.0, EventKind.CAPACITY, 5, "replica 5 fails")
    heap.push(0.5, EventKind.STEP, 4, "earlier")
    assert [heap.pop()[-1] for _ in range(7)] == [
        "earlier",
        "replica 5 fails",
        "first",
        "second",
        "request 3",
        "request 7",
        "step of replica 0",
    ]
    assert heap.now == 1.0


@pytest.mark.parametrize("time", [0.5, float("nan")])
def test_nothing_goes_into_the_past(time: float) -> None:
    heap = EventHeap()
    heap.push(1.0, EventKind.STEP, 0)
    heap.pop()
    with pytest.raises(ConfigError, match="past"):
        heap.push(time, EventKind.STEP, 0)


def test_a_schedule_takes_its_turn_among_what_is_on_the_heap() -> None:
    heap = EventHeap(
        [(time, EventKind.ARRIVAL, number, 0, f"request {number}") for number, time in enumerate((1, 1, 3))]
    )
    heap.push(1.0, EventKind.STEP, 0, "step")
    heap.push(1.0, EventKind.CLIENT, 9, "client")
    heap.push(2.0, EventKind.STEP, 0, "later step")
    heap.push(3.0, EventKind.ARRIVAL, 1, "request 1 again")
    assert [heap.pop()[-1] for _ in range(7)] == [
        "client",
        "request 0",
        "request 1",
        "step",
        "later step",
        "request 1 again",
        "request 2",
    ]
    with pytest.raises(IndexError):
        heap.pop()


def test_a_schedule_that_goes_back_is_refused() -> None:
    heap = EventHeap([(2.0, EventKind.ARRIVAL, 0, 0, None), (1.0, EventKind.ARRIVAL, 1, 0, None)])
    heap.pop()
    with pytest.raises(ConfigError, match="past"):
        heap.pop()
