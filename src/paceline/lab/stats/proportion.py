"""Shares with intervals, and exact tests on counts."""

from __future__ import annotations

import math
from typing import NamedTuple

from paceline.contracts.artefact import Estimate
from paceline.lab.stats.distributions import beta_quantile, fair_coin_mass, fair_coin_p, normal_quantile

WILSON = "Wilson 95 %"


def wilson(share: float, n_eff: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share seen in `n_eff` independent trials (1927). Never empty, within [0, 1]."""
    if n_eff <= 0:
        return 0.0, 1.0
    z = normal_quantile(0.5 + confidence / 2)
    centre = share + z * z / (2 * n_eff)
    half = z * math.sqrt(share * (1 - share) / n_eff + z * z / (4 * n_eff * n_eff))
    scale = 1 + z * z / n_eff
    # at the edges the bound is the edge itself; rounding must not leave the value outside
    low = 0.0 if share <= 0.0 else (centre - half) / scale
    high = 1.0 if share >= 1.0 else (centre + half) / scale
    return min(max(0.0, low), share), max(min(1.0, high), share)


def share_estimate(num_good: float, n: int, *, n_eff: float | None = None) -> Estimate:
    """Share `num_good / n` with Wilson's interval for n_eff trials (n, if independent)."""
    if n <= 0:
        return Estimate(method=WILSON, reason="no requests")
    worth = float(n) if n_eff is None else n_eff
    share = num_good / n
    lo, hi = wilson(share, worth)
    return Estimate(value=share, lo=lo, hi=hi, n=n, n_eff=worth, method=WILSON)


def clopper_pearson(num_good: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval (1934): never covers less than it says, so wider than Wilson's."""
    tail = (1 - confidence) / 2
    low = 0.0 if num_good == 0 else beta_quantile(tail, num_good, n - num_good + 1)
    high = 1.0 if num_good == n else beta_quantile(1 - tail, num_good + 1, n - num_good)
    return low, high


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided p of McNemar's exact test. `only_a`: items right in A and wrong in B; `only_b` the other way.

    Pairs that agree say nothing about the difference. 1.0 without any discordant pair.
    """
    discordant = only_a + only_b
    return 1.0 if discordant == 0 else fair_coin_p(only_b, discordant)


def mcnemar_mid(only_a: int, only_b: int) -> float:
    """McNemar's mid-p: the exact p less half the probability of what was seen. Nearer to its level than the exact test,
    hardly ever above it (Fagerland, Lydersen and Laake 2013)."""
    discordant = only_a + only_b
    if discordant == 0 or only_a == only_b:
        return 1.0
    return min(1.0, mcnemar_exact(only_a, only_b) - fair_coin_mass(min(only_a, only_b), discordant))


class PairedDifference(NamedTuple):
    """share(B) - share(A) over the same items."""

    value: float
    lo: float
    hi: float


def paired_share_difference(
    both: float, only_a: float, only_b: float, neither: float, confidence: float = 0.95
) -> PairedDifference:
    """Difference of two shares seen on the same items, with the score-like interval of Newcombe (1998, method 10).

    `both` + `only_a` items are right in A, `both` + `only_b` in B.
    """
    n = both + only_a + only_b + neither
    if n == 0:
        return PairedDifference(math.nan, -1.0, 1.0)
    in_a, in_b = (both + only_a) / n, (both + only_b) / n
    low_a, high_a = wilson(in_a, n, confidence)
    low_b, high_b = wilson(in_b, n, confidence)
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    cross = both * neither - only_a * only_b
    phi = 0.0
    if margins > 0:
        adjusted = max(cross - n / 2, 0.0) if cross > 0 else cross  # Newcombe's correction for positive agreement
        phi = adjusted / math.sqrt(margins)
    down = math.sqrt(max(0.0, (in_b - low_b) ** 2 - 2 * phi * (in_b - low_b) * (high_a - in_a) + (high_a - in_a) ** 2))
    up = math.sqrt(max(0.0, (high_b - in_b) ** 2 - 2 * phi * (high_b - in_b) * (in_a - low_a) + (in_a - low_a) ** 2))
    difference = in_b - in_a
    return PairedDifference(difference, max(-1.0, difference - down), min(1.0, difference + up))
