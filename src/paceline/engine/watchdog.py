"""Notices a step that does not end, from a thread of its own, and says so where readiness is asked."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from paceline.contracts.ports import Clock
from paceline.engine.loop import EngineCore


class Watchdog:
    """Marks `core` slow once its running step is older than `limit_s`; the end of the step clears the mark. `report`
    is told once per such step.

    It cannot end a hung kernel. It makes the hang visible: `healthy` turns false, `trouble` holds the last decisions.
    It does not keep `core` alive, and its thread ends with it.
    """

    def __init__(
        self, core: EngineCore, clock: Clock, *, limit_s: float = 120.0, report: Callable[[str], None] | None = None
    ) -> None:
        self._core = weakref.ref(core)
        self._clock = clock
        self._limit_s = limit_s
        self._report = report
        self._reported: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="paceline-watchdog", daemon=True)

    def check(self) -> bool:
        """Look once. True when all is well."""
        core = self._core()
        since = core.busy_since if core is not None else None
        if core is None or since is None:
            return True
        seconds = self._clock.now() - since
        if seconds <= self._limit_s:
            return True
        # no lock is taken: the thread that hangs may hold it
        why = f"a step has been running for {seconds:.1f} s (limit {self._limit_s:g} s)\n{core.dump()}"
        core.mark_slow(why)
        if self._report is not None and since != self._reported:
            self._reported = since
            self._report(why)
        return False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Idempotent, after `start`."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Watchdog:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._stop.wait(min(1.0, self._limit_s / 4)) and self._core() is not None:
            self.check()
