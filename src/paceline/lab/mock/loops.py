"""An event loop that keeps time: asyncio's own waits in whole milliseconds, which would show in every delay."""

from __future__ import annotations

import asyncio
import contextlib
import select
import selectors

_SELECT_FDS = 1024  # select() cannot take a higher descriptor


class FineSelector(selectors.DefaultSelector):  # epoll on Linux, kqueue on macOS
    """Waits on epoll's own descriptor by select(), whose limit is in microseconds; epoll's is in milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        fine = timeout is not None and timeout > 0.0 and hasattr(self, "fileno") and self.fileno() < _SELECT_FDS
        if fine:
            select.select([self], (), (), timeout)
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0 if fine else timeout)
        return ready


def new_loop(*, timed: bool = True) -> asyncio.AbstractEventLoop:
    """A loop for a server whose replies are timed: some tens of microseconds late rather than up to a millisecond.

    Not `timed`: as fast as can be had; uvloop, which waits in milliseconds, where it is installed.
    """
    if not timed:
        with contextlib.suppress(ImportError):
            import uvloop

            return uvloop.new_event_loop()
    return asyncio.SelectorEventLoop(FineSelector())
