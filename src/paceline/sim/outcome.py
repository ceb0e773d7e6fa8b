"""What may happen to a fleet, and what is told of it: changes of capacity, how requests went, totals."""

from __future__ import annotations

import msgspec

from paceline.contracts.request import Prompt, Usage
from paceline.contracts.slo import Outcome, Timeline
from paceline.contracts.workload import PlannedRequest


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A replica stops, with all it holds; it is up again, with an empty cache, after `down_s` and a cold start."""

    replica: int
    at_s: float
    down_s: float = 0.0
    back: bool = True  # False: it never comes back


class Joining(msgspec.Struct, frozen=True, kw_only=True):
    """One more replica is asked for at `at_s`; it takes requests after a cold start."""

    at_s: float


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How one planned request went. `timeline` and `usage` are None for one that no engine took."""

    planned: PlannedRequest
    plan_s: float  # when it was due
    sent_s: float
    end_s: float
    outcome: Outcome
    reason: str  # finish reason, or what went wrong
    http_status: int
    replica: int  # -1: none
    timeline: Timeline | None = None
    usage: Usage | None = None


class Totals(msgspec.Struct, kw_only=True):
    """What the simulation itself did."""

    virtual_s: float = 0.0  # time of the last event
    num_events: int = 0
    num_steps: int = 0  # of all replicas, those of runs included
    num_ended: int = 0
    busy_s: float = 0.0  # of all replicas: seconds in steps
    replica_s: float = 0.0  # seconds that replicas were up or starting: what is paid for


class Open(msgspec.Struct, eq=False):
    """A request that was sent and has not ended."""

    planned: PlannedRequest
    plan_s: float
    prompt: Prompt
    replica: int
    first: tuple[Timeline, Usage] | None = None  # of its prompt, where that was computed on another replica
    left: tuple[Outcome, str] | None = None  # how its client, or its replica, went
