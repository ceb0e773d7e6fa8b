"""One tenant's waiting requests of one class, in the order in which they are served.

Those with a target for their first token go by the time it is due. A prompt that could not make it any more, even if it
began now, is late: serving it first would make the next ones late too, for nothing. It goes behind, by arrival, with
those that have no target. Both times are fixed when a request comes, so heaps keep the order.

Nobody starves: when `TURN` others have passed the oldest of those behind, it is next.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeAlias

from paceline.engine.request_state import RequestState

TURN = 16  # one turn in so many is by arrival, while requests in time pass late ones
_MIN_DEAD = 64

_Entry: TypeAlias = tuple[float, float, int, int, RequestState]  # rank, arrival, request id, serial (no two alike)


class Line:
    """Two heaps with lazy deletion. Without targets everybody is in the second, by arrival and request id. Whoever
    turns out to be late is added to `late`."""

    __slots__ = ("_behind", "_dead", "_hurried", "_late", "_passed")

    def __init__(self, late: list[RequestState]) -> None:
        self._late = late
        self._hurried: list[_Entry] = []  # by the time their first token is due
        self._behind: list[_Entry] = []  # by arrival
        self._dead = 0
        self._passed = 0  # turns since one of those behind was taken

    def push(self, state: RequestState, serial: int) -> None:
        if state.rank < inf:
            heappush(self._hurried, (state.rank, state.arrival, state.request_id, serial, state))
        else:
            heappush(self._behind, (0.0, state.arrival, state.request_id, serial, state))

    def peek(self, now: float) -> RequestState | None:
        """Who is next. `now` never goes back."""
        heap = self._next(now)
        return heap[0][-1] if heap else None

    def pop(self, now: float) -> None:
        """Take out the one that `peek` gave at the same time."""
        heap = self._next(now)
        if heap is self._hurried and self._behind:
            self._passed += 1
        else:
            self._passed = 0
        heappop(heap)

    def _next(self, now: float) -> list[_Entry]:
        """The heap whose turn it is, its top alive; empty: nobody is here."""
        hurried, behind = self._hurried, self._behind
        while hurried:
            state = hurried[0][-1]
            if not state.queued:
                heappop(hurried)
                self._dead -= 1
            elif state.start_by < now and not state.resumes:
                entry = heappop(hurried)
                heappush(behind, (0.0, *entry[1:]))
                self._late.append(state)
            else:
                break
        while behind and not behind[0][-1].queued:
            heappop(behind)
            self._dead -= 1
        return hurried if hurried and (not behind or self._passed < TURN) else behind

    def note_dead(self) -> None:
        """One of them left from the middle."""
        self._dead += 1
        if self._dead > _MIN_DEAD and 2 * self._dead > len(self):
            self._hurried = [entry for entry in self._hurried if entry[-1].queued]
            self._behind = [entry for entry in self._behind if entry[-1].queued]
            heapify(self._hurried)
            heapify(self._behind)
            self._dead = 0

    def __len__(self) -> int:
        """Entries, marks of those that left included."""
        return len(self._hurried) + len(self._behind)

    def live(self) -> list[RequestState]:
        """Everybody, about in order; sorts."""
        entries = [*sorted(self._hurried, key=_order), *sorted(self._behind, key=_order)]
        return [entry[-1] for entry in entries if entry[-1].queued]

    def nearest(self, most: int) -> list[RequestState]:
        """Up to `most` of those in time, by when they are due. Looks at no more than four times as many."""
        heap, found = self._hurried, list[RequestState]()
        front = [(heap[0], 0)] if heap else []
        visits = 4 * most
        while front and len(found) < most and visits:
            visits -= 1
            entry, at = heappop(front)
            if entry[-1].queued:
                found.append(entry[-1])
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heappush(front, (heap[child], child))
        return found

    def ahead_of(self, state: RequestState) -> tuple[int, int]:
        """(requests, their known tokens) that go before one that comes now. Looks at everybody."""
        if state.by_slack:
            ahead = [e[-1].known for e in self._hurried if e[0] <= state.rank and e[-1].queued]
        else:
            ahead = [e[-1].known for e in self._behind if e[-1].queued]
        return len(ahead), sum(ahead)


def _order(entry: _Entry) -> tuple[float, float, int, int]:
    return entry[:4]
