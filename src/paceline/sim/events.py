"""What happens next in virtual time: a heap whose ties are decided by kind, then by number, then by who came first.

So the same simulation takes the same course, whatever the host. What comes from outside at a moment (a replica that
fails, a client that gives up, a request) is seen by a step that begins at this very moment.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, TypeAlias

from paceline.errors import ConfigError


class EventKind:
    """In the order in which events of one moment happen. Plain numbers: comparing a member of an enumeration is a call,
    and the loop does it for each event."""

    CAPACITY = 0  # a replica comes or goes
    CLIENT = 1  # a client leaves, or the load is over
    ARRANGED = 2  # something that was arranged before: `what(time)` is called
    ARRIVAL = 3
    STEP = 4  # a replica's step, or run of steps, ends


Event: TypeAlias = tuple[float, int, int, int, Any]
"""Virtual time in seconds; kind; number of the request or replica; serial number; what it is about. The last is never
compared, since serial numbers differ."""


class EventHeap:
    """Events by time. Nothing may be put into the past."""

    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self._heap: list[Event] = []
        self._serial = 0
        self.now = 0.0  # time of the event given last

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, time: float, kind: int, number: int, what: Any = None) -> None:
        if not time >= self.now:
            raise ConfigError("an event lies in the past", seen=time, expected=f"{self.now} s or later")
        self._serial += 1
        heappush(self._heap, (time, kind, number, self._serial, what))

    def pop(self) -> Event:
        """The next one; virtual time moves on to it."""
        event = heappop(self._heap)
        self.now = event[0]
        return event

    @property
    def next_time(self) -> float | None:
        return self._heap[0][0] if self._heap else None
