"""How many sequences of a length distribution fit into a KV cache, and how likely their sum is too large.

The sum of n sequences is close to normal, with one correction for the skew of a single one:

    P(sum > B) = 1 - Phi(x) + phi(x) (x^2 - 1) skew / (6 sqrt n),    x = (B - n mean) / (sd sqrt n)

Source: F. Y. Edgeworth, "The law of error", Trans. Cambridge Phil. Soc. 20, 1905, first term. Good from about ten
sequences on; below that a cache that holds n of the longest is what to trust (`by_longest`).
"""

from __future__ import annotations

import math

import msgspec

from paceline.planner.traffic import Holding

MAX_SEQS = 4096  # no host keeps up with more rows


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How many sequences a cache of `num_blocks` holds."""

    num_blocks: int
    num_seqs: int  # at most so many run with a risk of `risk` or less
    risk: float  # that `num_seqs` sequences want more blocks than there are, at a random moment
    by_longest: int  # if every sequence were the longest
    mean_blocks: float
    sd_blocks: float


def overflow_risk(holding: Holding, num_seqs: int, num_blocks: int) -> float:
    """Probability that `num_seqs` running sequences want more than `num_blocks` at a random moment."""
    if num_seqs * holding.most <= num_blocks:
        return 0.0
    room = num_blocks - num_seqs * holding.mean
    spread = holding.sd * math.sqrt(num_seqs)
    if spread == 0:
        return 0.0 if room >= 0 else 1.0
    x = room / spread
    tail = 0.5 * math.erfc(x / math.sqrt(2))
    bend = math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x * x - 1) * holding.skew / (6 * math.sqrt(num_seqs))
    return min(1.0, max(0.0, tail + bend))


def sequences_that_fit(holding: Holding, num_blocks: int, *, risk: float = 0.01, limit: int = MAX_SEQS) -> Fit:
    """The most sequences whose risk of overflow is at most `risk`; 0 when not even the longest alone fits."""
    by_longest = num_blocks // max(1, holding.most)
    low, high = min(by_longest, limit), min(limit, int(num_blocks / max(holding.mean, 1e-9)))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if overflow_risk(holding, middle, num_blocks) <= risk else (low, middle - 1)
    num_seqs = low if by_longest else 0
    return Fit(
        num_blocks=num_blocks,
        num_seqs=num_seqs,
        risk=overflow_risk(holding, num_seqs, num_blocks) if num_seqs else 1.0,
        by_longest=by_longest,
        mean_blocks=holding.mean,
        sd_blocks=holding.sd,
    )
