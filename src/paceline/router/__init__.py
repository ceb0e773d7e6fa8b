"""Which replica takes a request: a choice made from what a router knows, without asking anybody.

`ledger` is what the router has seen pass through it, `policy` the choices. Pure: no I/O, no clock, no randomness but
what follows from a seed and the request's id, so the same code decides in a proxy, in the simulator and in tests. May
import contracts; prices come in through `contracts.ports.CostModel`.
"""

from __future__ import annotations

from paceline.router.ledger import Ledger, Load, Reports
from paceline.router.policy import (
    POLICIES,
    Ask,
    LeastLoaded,
    Policy,
    PowerOfTwo,
    PredictedSeconds,
    PrefixAffinity,
    RoundRobin,
    make_policy,
)

__all__ = [
    "POLICIES",
    "Ask",
    "LeastLoaded",
    "Ledger",
    "Load",
    "Policy",
    "PowerOfTwo",
    "PredictedSeconds",
    "PrefixAffinity",
    "Reports",
    "RoundRobin",
    "make_policy",
]
