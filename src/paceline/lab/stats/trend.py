"""Does a series rise, fall or jump? Robust slopes and tests that know neighbours are alike."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from paceline.lab.stats.dependence import correlation_time
from paceline.lab.stats.distributions import normal_tail
from paceline.lab.stats.distributions import ranks as ranks_of

_MAX_POINTS = 2000  # Theil-Sen looks at every pair; longer series are thinned evenly


class Slope(NamedTuple):
    """Units of y per unit of x."""

    value: float
    lo: float
    hi: float
    intercept: float


def theil_sen(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Slope:
    """Median of the slopes of all pairs, with Sen's interval (1968). nan for fewer than 3 points."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(a) > _MAX_POINTS:
        keep = np.linspace(0, len(a) - 1, _MAX_POINTS).astype(np.int64)
        a, b = a[keep], b[keep]
    if len(a) < 3 or float(np.ptp(a)) <= 0:
        return Slope(math.nan, math.nan, math.nan, math.nan)
    from scipy.stats import theilslopes  # a second to import, and only long runs are judged by it

    found = theilslopes(b, a, alpha=confidence)
    return Slope(float(found.slope), float(found.low_slope), float(found.high_slope), float(found.intercept))


class Leak(NamedTuple):
    """Growth of a resource. `leaks`: the interval lies above 0 and the growth of a day is more than is allowed."""

    slope_per_s: float
    lo_per_s: float
    hi_per_s: float
    per_day: float
    leaks: bool
    p_trend: float


def leak(t_s: ArrayLike, amount: ArrayLike, *, max_per_day: float) -> Leak:
    """Theil-Sen slope of `amount` at times `t_s` (seconds), measured at moments of equal load: idle checkpoints.

    Leaks if the slope's 95 % interval lies above 0, Mann-Kendall agrees (p < 0.05, neighbours accounted for) and the
    slope, carried on for a day, exceeds `max_per_day` (units of `amount`).
    """
    slope = theil_sen(t_s, amount)
    trend = mann_kendall(amount)
    per_day = slope.value * 86_400
    grows = slope.lo > 0 and trend.p < 0.05 and trend.z > 0
    return Leak(slope.value, slope.lo, slope.hi, per_day, bool(grows and per_day > max_per_day), trend.p)


class Trend(NamedTuple):
    z: float  # > 0: rises
    p: float  # two-sided
    tau: float  # Kendall's, -1 .. 1


def mann_kendall(series: ArrayLike) -> Trend:
    """Test of a monotone trend (Mann 1945), its variance times the correlation time of the ranks without the trend
    (after Yue and Wang 2004). (nan, 1, nan) for fewer than 8 values.
    """
    x = np.asarray(series, dtype=np.float64)
    n = len(x)
    if n < 8:
        return Trend(math.nan, 1.0, math.nan)
    if n > _MAX_POINTS:
        x = x[np.linspace(0, n - 1, _MAX_POINTS).astype(np.int64)]
        n = len(x)
    score = float(np.sign(x[None, :] - x[:, None])[np.triu_indices(n, 1)].sum())
    _, ties = np.unique(x, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return Trend(0.0, 1.0, 0.0)
    steps, ranks = np.linspace(-1.0, 1.0, n), ranks_of(x)
    # a curve, not a line: what a bent trend leaves over a line would pass for dependence
    rest = ranks - np.polyval(np.polyfit(steps, ranks, 2), steps)
    if float(rest.std()) > 1e-6 * n:  # below: nothing but rounding is left
        variance *= correlation_time(rest)
    z = (score - np.sign(score)) / math.sqrt(variance)
    return Trend(float(z), 2 * normal_tail(abs(float(z))), 2 * score / (n * (n - 1)))


class Shift(NamedTuple):
    at: int  # first sample after the jump
    p: float
    before: float  # medians
    after: float


def pettitt(series: ArrayLike) -> Shift:
    """Test of one jump in level (Pettitt 1979); p by his approximation, the statistic's variance times the correlation
    time of the residuals about the two levels. p = 1 for fewer than 8 values.
    """
    x = np.asarray(series, dtype=np.float64)
    n = len(x)
    if n < 8:
        return Shift(0, 1.0, math.nan, math.nan)
    ranks = ranks_of(x)
    steps = np.arange(1, n + 1)
    scores = 2 * np.cumsum(ranks) - steps * (n + 1)
    at = int(np.argmax(np.abs(scores[:-1])))
    before, after = float(np.median(x[: at + 1])), float(np.median(x[at + 1 :]))
    residuals = np.concatenate([x[: at + 1] - before, x[at + 1 :] - after])
    tau = correlation_time(residuals)  # the statistic's variance grows with it
    p = min(1.0, 2 * math.exp(-6 * float(scores[at]) ** 2 / ((n**3 + n**2) * tau)))
    return Shift(at + 1, p, before, after)


def warmup_length(series: ArrayLike, *, batch: int = 5) -> int:
    """Samples to drop from the front: MSER-5 (White 1997): the cut that makes the mean's error of the rest least.

    Never more than half of the series; 0 if it is shorter than 4 batches.
    """
    x = np.asarray(series, dtype=np.float64)
    num = len(x) // batch
    if num < 4:
        return 0
    means = x[: num * batch].reshape(num, batch).mean(axis=1)
    left = np.arange(num, 0, -1, dtype=np.float64)  # batches that remain after a cut of 0, 1, ...
    tail_sum = np.cumsum(means[::-1])[::-1]
    tail_square = np.cumsum((means**2)[::-1])[::-1]
    squares = np.maximum(tail_square - tail_sum**2 / left, 0.0)
    half = num // 2 + 1
    return int(np.argmin(squares[:half] / left[:half] ** 2)) * batch
