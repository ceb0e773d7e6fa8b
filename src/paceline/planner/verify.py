"""A second opinion on the best candidates: what a simulation found, and what it changes in their order.

The steady state (`steady`) knows no order of requests. Whoever simulates a candidate under the same traffic puts
what came out beside the prediction, and the order of candidates follows the simulation wherever it speaks clearly.
A few hundred requests leave the load that an engine carries uncertain by some percent: within that the prediction's
order stands.

Nothing is simulated here: `search.Verify` is the seam, and whoever puts the program together fills it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from paceline.planner.steady import Operating

if TYPE_CHECKING:
    from paceline.planner.question import Question
    from paceline.planner.search import Candidate

ONE_IN_TWENTY = 1.6448536269514722  # standard deviations that noise exceeds to one side so often
LEAST_LEAD = 0.05  # of goodput: less is no lead


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What came out at one load, of the requests that were looked at: those of a steady state."""

    rate_rps: float  # offered to all replicas
    expected: Operating  # of one replica, at the same load
    attainment: float  # share of requests that met every target
    ttft_p95_s: float
    tpot_s: float  # mean time of a token after the first
    num_preemptions: int
    num_requests: int
    mode: str = "fixed"  # scheduling_mode of the engine

    @property
    def goodput_rps(self) -> float:
        return self.rate_rps * self.attainment

    def noise(self, share: float) -> float:
        """What the attainment of so many requests may be below a true `share`, nineteen times in twenty."""
        return ONE_IN_TWENTY * math.sqrt(share * (1 - share) / self.num_requests)


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate as simulated: at the load in question, then at lower ones as long as targets were missed."""

    loads: tuple[Load, ...]
    share: float  # of requests that must meet their targets
    seed: int

    @property
    def first(self) -> Load:
        """At the rate that is asked for, or just below the capacity that the steady state predicts."""
        return self.loads[0]

    @property
    def carried(self) -> Load:
        """At the highest load that was tried and carried, or the lowest that was tried."""
        return self.loads[-1]

    @property
    def met(self) -> bool:
        """The asked share of requests was in time, as far as so few can tell."""
        return meets(self.carried, self.share)


def meets(load: Load, share: float) -> bool:
    """The share was met, or missed by no more than noise."""
    return load.attainment >= share - load.noise(share)


def in_simulated_order(question: Question, candidates: Sequence[Candidate]) -> list[Candidate]:
    """`candidates`, best first as predicted, in the order that simulation leaves them in. One that was not simulated
    stays behind those that were before it."""
    order: list[Candidate] = []
    for candidate in candidates:
        at = len(order)
        while at and is_ahead(question, candidate, order[at - 1]):
            at -= 1
        order.insert(at, candidate)
    return order


def is_ahead(question: Question, candidate: Candidate, other: Candidate) -> bool:
    """Simulation puts `candidate` clearly before `other`. Where a rate is asked for and both carry it, what the search
    ranks them by (devices, what a loss leaves) is not simulated, and stands."""
    one, two = candidate.simulated, other.simulated
    if one is None or two is None:
        return False
    if one.met != two.met:
        return one.met
    if one.met and question.traffic.rate_rps is not None:
        return False
    lead = one.carried.goodput_rps - two.carried.goodput_rps
    noise = math.hypot(*(s.carried.rate_rps * s.carried.noise(s.share) for s in (one, two)))
    return lead > max(noise, LEAST_LEAD * two.carried.goodput_rps)


def in_words(simulated: Simulated) -> str:
    """How the last load went."""
    load = simulated.carried
    return (
        f"{load.attainment:.0%} of requests are in time at {load.rate_rps:.3g} a second; {simulated.share:.0%} are "
        f"asked for"
    )
