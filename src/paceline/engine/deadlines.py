"""Requests by the time at which they must end, wherever they are; lazily deleted."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeAlias

from paceline.contracts.decision import Reason
from paceline.engine.request_state import RequestState

_Entry: TypeAlias = tuple[float, int, RequestState, Reason]


class Deadlines:
    """A heap of both deadlines of each request. The queue's does not count once the request was ever admitted."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, state: RequestState) -> None:
        request = state.request
        if request.deadline is not None:
            self._push(request.deadline, state, Reason.DEADLINE)
        if request.queue_deadline is not None:
            self._push(request.queue_deadline, state, Reason.QUEUE_TIMEOUT)

    def _push(self, time: float, state: RequestState, reason: Reason) -> None:
        self._serial += 1
        heappush(self._heap, (time, self._serial, state, reason))

    def trim(self, num_open: int) -> None:
        """Forget the finished when they are most of the heap (deadlines may lie far ahead)."""
        if len(self._heap) > 64 + 4 * num_open:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapify(self._heap)

    def pop_due(self, now: float) -> tuple[RequestState, Reason] | None:
        """One whose time has come, or None."""
        while self._heap and self._heap[0][0] <= now:
            entry = heappop(self._heap)
            if _counts(entry):
                return entry[2], entry[3]
        return None

    def next_time(self) -> float | None:
        while self._heap and not _counts(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None


def _counts(entry: _Entry) -> bool:
    state, reason = entry[2], entry[3]
    if state.phase.is_terminal:
        return False
    return reason is Reason.DEADLINE or state.cached_tokens < 0
