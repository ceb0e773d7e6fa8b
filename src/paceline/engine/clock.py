"""The wall clock. Simulation uses `paceline.sim.clock.VirtualClock` at the same seam."""

from __future__ import annotations

import time


class WallClock:
    """Monotonic seconds of this machine; on Linux the same in every process, so arrivals may be stamped by a client."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
