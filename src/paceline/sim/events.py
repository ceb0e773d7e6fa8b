"""What happens next in virtual time: a heap whose ties are decided by kind, then by number, then by who came first.

So the same simulation takes the same course, whatever the host. What comes from outside at a moment (a replica that
fails, a client that gives up, a request) is seen by a step that begins at this very moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """Events by time. Nothing may be put into the past. `schedule` are events that are known beforehand, in order: they
    are taken from there when their turn comes, and are never on the heap. Their serial numbers are 0."""

    __slots__ = ("_heap", "_next", "_schedule", "_serial", "now")

    def __init__(self, schedule: Iterable[Event] = ()) -> None:
        self._heap: list[Event] = []
        self._serial = 0
        self._schedule: Iterator[Event] = iter(schedule)
        self._next: Event | None = next(self._schedule, None)
        self.now = 0.0  # time of the event given last

    def push(self, time: float, kind: int, number: int, what: Any = None) -> None:
        if not time >= self.now:
            raise ConfigError("an event lies in the past", seen=time, expected=f"{self.now} s or later")
        self._serial += 1
        heappush(self._heap, (time, kind, number, self._serial, what))

    def pop(self) -> Event:
        """The next one; virtual time moves on to it. Raises IndexError when there is none."""
        event, heap = self._next, self._heap
        if event is None or (heap and heap[0] < event):
            event = heappop(heap)
        else:
            self._next = next(self._schedule, None)
            if not event[0] >= self.now:
                raise ConfigError("an event lies in the past", seen=event[0], expected=f"{self.now} s or later")
        self.now = event[0]
        return event
