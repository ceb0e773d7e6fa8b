"""How many replicas a fleet wants, decided from what a router sees. Decides only: whoever asks starts and stops them.

    wanted = ceil(open requests / target of one replica)        a burst shows at once, before any latency does

As the horizontal autoscaler of Kubernetes does: nothing happens within `tolerance` of what is there; a fleet grows at
once, by at most `max_up` a look; it shrinks only to the largest number wanted within the last `down_after_s`, so that a
pause between two bursts costs no cold start. Replicas that are starting count as there, or each look would ask for
them again.
"""

from __future__ import annotations

from collections import deque
from math import ceil

import msgspec

from paceline.errors import ConfigError


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a fleet."""

    min_replicas: int = 1
    max_replicas: int = 8
    target_open: float = 8.0  # requests that are open on one replica when all is well
    period_s: float = 5.0  # between two looks
    tolerance: float = 0.1  # relative; within it the fleet stays as it is
    max_up: int = 4  # replicas started at one look
    down_after_s: float = 60.0  # so long it must have wanted fewer

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, expected: str) -> None:
            if not ok:
                raise ConfigError(f"{name} is out of range", seen=getattr(self, name), expected=expected)

        need(self.min_replicas >= 1, "min_replicas", "at least 1")
        need(self.max_replicas >= self.min_replicas, "max_replicas", f"at least min_replicas ({self.min_replicas})")
        need(0 < self.target_open < float("inf"), "target_open", "above 0 requests")
        need(0 < self.period_s < float("inf"), "period_s", "above 0 s")
        need(0 <= self.tolerance < 1, "tolerance", "0 to below 1")
        need(self.max_up >= 1, "max_up", "at least 1")
        need(0 <= self.down_after_s < float("inf"), "down_after_s", "0 s or more")


class Look(msgspec.Struct, frozen=True):
    """What a fleet was like at one moment, and what was then wanted."""

    time: float  # seconds
    num_ready: int  # replicas that take requests
    num_starting: int
    num_open: int  # requests
    desired: int  # replicas


class Scaler:
    """Remembers what was wanted in the last `down_after_s`, and nothing else."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self.policy = policy
        self._wanted: deque[tuple[float, int]] = deque()  # (time, replicas), newest last

    def look(self, now: float, *, num_ready: int, num_starting: int, num_open: int) -> Look:
        """The number of replicas wanted from now on, those that are starting among them."""
        policy, there = self.policy, num_ready + num_starting
        wanted = ceil(num_open / policy.target_open)
        if there and abs(num_open / (policy.target_open * there) - 1) <= policy.tolerance:
            wanted = there
        wanted = min(max(wanted, policy.min_replicas), policy.max_replicas)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - policy.down_after_s:
            self._wanted.popleft()
        desired = max(number for _, number in self._wanted) if wanted < there else wanted
        desired = min(desired, there + policy.max_up) if desired > there else desired
        desired = there if wanted < there < desired else desired  # an older wish starts nobody
        return Look(now, num_ready, num_starting, num_open, desired)


__all__ = ["Look", "Scaler", "ScalingPolicy"]
