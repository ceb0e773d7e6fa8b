"""A number with how far it may be off, and how it was come by.

Tiers, from firm to weak:

    measured           this very size of step was timed here
    interpolated       between sizes that were timed
    extrapolated       beyond them, or in a direction nothing was timed in
    first principles   from rates and counts alone; nothing was timed

Intervals hold nine in ten outcomes where the tier is `measured` or `interpolated`; for the others they are a judgement,
and wide. A sum is as weak as its weakest part. Its interval adds the parts' half-widths: what errs in one step errs
alike in the next, so nothing averages out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Tier = Literal["measured", "interpolated", "extrapolated", "first principles"]
TIERS: tuple[Tier, ...] = ("measured", "interpolated", "extrapolated", "first principles")
NINE_IN_TEN = 1.6448536269514722  # standard deviations to each side, of a normal distribution


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """`lo <= value <= hi`, in the unit of whoever made it (milliseconds unless it says otherwise)."""

    value: float
    lo: float
    hi: float
    tier: Tier
    why: str  # for people: what it rests on

    def times(self, factor: float) -> Estimate:
        """`factor` of them, one after another. `factor` >= 0."""
        return Estimate(
            value=self.value * factor, lo=self.lo * factor, hi=self.hi * factor, tier=self.tier, why=self.why
        )

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.lo:.4g} to {self.hi:.4g}, {self.tier})"


def exact(value: float, why: str) -> Estimate:
    """A number that is known."""
    return Estimate(value=value, lo=value, hi=value, tier="measured", why=why)


def weakest(tiers: Iterable[Tier]) -> Tier:
    return max(tiers, key=TIERS.index, default="measured")


def sum_of(parts: Iterable[Estimate], why: str = "") -> Estimate:
    """All of them one after another. Without `why`: what the weakest of them says."""
    found = list(parts)
    tier = weakest(part.tier for part in found)
    return Estimate(
        value=sum(part.value for part in found),
        lo=sum(part.lo for part in found),
        hi=sum(part.hi for part in found),
        tier=tier,
        why=why or next((part.why for part in found if part.tier == tier), "nothing to do"),
    )
