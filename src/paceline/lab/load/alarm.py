"""Wakes the event loop at a moment of the monotonic clock, to a fraction of a millisecond.

Timers of event loops count whole milliseconds, so a request would leave up to 1 ms late, on average half of that: as
much as some servers' first token takes. Linux has timers that a loop can wait for like for a socket (timerfd);
elsewhere the loop's own timer serves, and the lag that is recorded shows it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC, _ABSOLUTE = 1, 0o4000 | 0o2000000, 1
_SECOND = 1_000_000_000


class _Itimerspec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class Alarm:
    """One moment at a time: `set` replaces the one before. `ring` is called in the loop, never early."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        if self._libc is not None and hasattr(self._libc, "timerfd_create"):
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._readable)

    @property
    def precise(self) -> bool:
        return self._fd >= 0

    def set(self, at_ns: int) -> None:
        """`at_ns` on `time.monotonic_ns()`; a moment that has passed rings at once."""
        if self._fd >= 0 and self._libc is not None:
            at_ns = max(1, at_ns)
            spec = _Itimerspec(0, 0, at_ns // _SECOND, at_ns % _SECOND)
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        delay_s = (at_ns - time.monotonic_ns()) / _SECOND
        self._handle = self._loop.call_later(max(0.0, delay_s), self._ring)

    def close(self) -> None:
        """No more rings. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._ring()
