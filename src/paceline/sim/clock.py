"""A clock that moves only when told to: hours of traffic pass in milliseconds, and the same way each time."""

from __future__ import annotations


class VirtualClock:
    """Monotonic seconds since `start`. `sleep` returns at once, with the time passed."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += max(0.0, seconds)

    def advance_to(self, time: float) -> None:
        """Move on to `time`; a time already past changes nothing."""
        self._now = max(self._now, time)
