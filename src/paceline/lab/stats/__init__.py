"""Numbers in, numbers out: intervals, tests and searches that the lab's answers rest on.

    order        percentiles with intervals, and the refusal of thin ones
    dependence   how many independent samples a series of neighbours is worth
    proportion   shares: Wilson, McNemar, paired differences
    bootstrap    blocks kept together
    paired       ratios of two arms, not-worse tests, Holm; strata   of sums over parts that differ by design
    trend        slopes, trends, jumps, leaks, warm-up
    search       the highest rate that holds a share
    power        how many requests or runs show a change of a given size

Imports contracts, numpy and scipy; no other part of the lab. Never does I/O; randomness comes with a seed.
"""

from __future__ import annotations

from paceline.lab.stats.bootstrap import block_indices, mean_estimate, percentile_interval, resampled
from paceline.lab.stats.dependence import autocorrelation, block_length, correlation_time, effective_samples
from paceline.lab.stats.order import interval_ranks, is_infinite, percentile_estimate, refusal
from paceline.lab.stats.paired import (
    Location,
    NotWorse,
    Ratio,
    hodges_lehmann,
    holm,
    mean_ratio,
    non_inferior,
    quantile_ratio,
    ratio_of_repeats,
    share_ratio,
)
from paceline.lab.stats.power import detectable_ratio, pairs_needed
from paceline.lab.stats.proportion import (
    PairedDifference,
    clopper_pearson,
    mcnemar_exact,
    mcnemar_mid,
    paired_share_difference,
    share_estimate,
    wilson,
)
from paceline.lab.stats.search import Bracket, Point, RateSearch
from paceline.lab.stats.trend import Leak, Shift, Slope, Trend, leak, mann_kendall, pettitt, theil_sen, warmup_length

__all__ = [
    "Bracket",
    "Leak",
    "Location",
    "NotWorse",
    "PairedDifference",
    "Point",
    "RateSearch",
    "Ratio",
    "Shift",
    "Slope",
    "Trend",
    "autocorrelation",
    "block_indices",
    "block_length",
    "clopper_pearson",
    "correlation_time",
    "detectable_ratio",
    "effective_samples",
    "hodges_lehmann",
    "holm",
    "interval_ranks",
    "is_infinite",
    "leak",
    "mann_kendall",
    "mcnemar_exact",
    "mcnemar_mid",
    "mean_estimate",
    "mean_ratio",
    "non_inferior",
    "paired_share_difference",
    "pairs_needed",
    "percentile_estimate",
    "percentile_interval",
    "pettitt",
    "quantile_ratio",
    "ratio_of_repeats",
    "refusal",
    "resampled",
    "share_estimate",
    "share_ratio",
    "theil_sen",
    "warmup_length",
    "wilson",
]
