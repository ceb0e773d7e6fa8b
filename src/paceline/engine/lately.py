"""What went on lately: a share of the time, and how many rows there usually were."""

from __future__ import annotations

WINDOW_S = 10.0  # lately
_PAUSE_S = 1.0  # nothing noted for so long: nobody knows what was between


class Share:
    """The share of the last `WINDOW_S` seconds or more that went into something, from the times it did."""

    def __init__(self) -> None:
        self._began, self._spent_s, self._before_s = 0.0, 0.0, 0.0

    def note(self, now: float, spent_s: float) -> None:
        self._turn(now)
        self._spent_s += spent_s

    def share(self, now: float) -> float:
        self._turn(now)
        part = (now - self._began) / WINDOW_S
        return (self._before_s * (1.0 - part) + self._spent_s) / WINDOW_S

    def _turn(self, now: float) -> None:
        if now - self._began < WINDOW_S:
            return
        near = now - self._began < 2 * WINDOW_S
        self._before_s, self._spent_s = self._spent_s if near else 0.0, 0.0
        self._began = self._began + WINDOW_S if near else now


class UsualRows:
    """How many rows decoded lately, in the mean over the time in which any did."""

    def __init__(self) -> None:
        self._rows, self._any = Share(), Share()
        self._last, self._num = 0.0, 0

    def note(self, num: int, now: float) -> None:
        """So many rows decode from now on."""
        if self._num:
            lasted_s = min(now - self._last, _PAUSE_S)
            self._rows.note(now, lasted_s * self._num)
            self._any.note(now, lasted_s)
        self._last, self._num = now, num

    def mean(self, now: float) -> float:
        """0: none did."""
        any_s = self._any.share(now)
        return self._rows.share(now) / any_s if any_s > 0.0 else 0.0
