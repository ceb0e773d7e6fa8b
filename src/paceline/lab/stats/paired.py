"""Two arms that answered the same requests: ratios, shifts, and "not worse than a margin"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from paceline.lab.stats.bootstrap import Indices, resampled, small_sample_factor
from paceline.lab.stats.dependence import Floats, block_length, correlation_time
from paceline.lab.stats.distributions import normal_quantile, normal_tail, ranks, t_quantile, t_tail
from paceline.lab.stats.proportion import mcnemar_mid, paired_share_difference, wilson

_MAX_WALSH = 1500  # Hodges-Lehmann looks at every pair


class Ratio(NamedTuple):
    """B / A. `p` is two-sided for "the ratio is 1"; nan where it could not be had."""

    value: float
    lo: float
    hi: float
    p: float
    n: int
    method: str


def _quantile(values: Floats, q: float) -> Floats:
    """Inverted-CDF quantile along the last axis, [k]."""
    n = values.shape[-1]
    rank = max(0, math.ceil(q * n - 1e-9) - 1)
    return np.asarray(np.partition(values, rank, axis=-1)[..., rank])


def _ratio(point: float, draws: Floats, n: int, block: int, method: str) -> Ratio:
    """Interval and p from resampled log ratios. The p counts resamples on the other side of 1 (both, doubled)."""
    if point > 0 and math.isfinite(point):
        draws = math.log(point) + (draws - math.log(point)) * small_sample_factor(n / block)
    draws = np.sort(draws[~np.isnan(draws)])
    if len(draws) < 100 or math.isnan(point):
        return Ratio(point, math.nan, math.nan, math.nan, n, method)
    # order statistics, for some draws may be infinite: an arm in which nothing was good, or too much failed
    low = float(draws[math.floor(0.025 * (len(draws) - 1))])
    high = float(draws[math.ceil(0.975 * (len(draws) - 1))])
    below = (np.count_nonzero(draws <= 0) + 1) / (len(draws) + 1)
    above = (np.count_nonzero(draws >= 0) + 1) / (len(draws) + 1)
    hi = math.exp(high) if high < 700 else math.inf
    return Ratio(point, math.exp(low), hi, min(1.0, 2 * min(below, above)), n, method)


def _log_ratio(over: Floats, under: Floats) -> Floats:
    """Equal values have the ratio 1, two of 0 or two of +inf included."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(over == under, 0.0, np.log(over) - np.log(under))


def _rank_blocks(*series: Floats) -> int:
    """Length of blocks, from the ranks: +inf has one."""
    return max(block_length(ranks(s)) for s in series)


def quantile_ratio(a: ArrayLike, b: ArrayLike, q: float, *, paired: bool = True, seed: int = 0) -> Ratio:
    """q-quantile of B over that of A. `a`, `b`: [n] samples of the same requests in order of the plan, if `paired`.

    Samples may be +inf (failed) or 0 (tokens in one read have no time between them). A quantile of 0 against one above
    it is a ratio of +inf, whose lower bound may still be a number; two of 0, or of +inf, have none. Paired: requests
    are drawn together, in blocks as long as their dependence asks. Else each arm is drawn by itself.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) == 0:
        return Ratio(math.nan, math.nan, math.nan, math.nan, 0, "no samples")

    def point(sample: Floats) -> float:
        return float(_quantile(sample[None, :], q)[0])

    under, over = point(x), point(y)
    value = over / under if under > 0 else math.inf  # of a finite B over +inf: 0
    if under == over and not 0 < under < math.inf:
        value = math.nan
    count = 2000 if len(x) <= 4000 else 1000
    if paired:
        block = _rank_blocks(x, y)

        def both(index: Indices) -> Floats:
            return _log_ratio(_quantile(y[index], q), _quantile(x[index], q))

        draws = resampled(both, len(x), block=block, num_resamples=count, seed=seed)
        return _ratio(value, draws, len(x), block, f"paired block bootstrap 95 %, blocks of {block}")
    block = _rank_blocks(x, y)
    of_a = resampled(lambda i: _quantile(x[i], q), len(x), block=block, num_resamples=count, seed=seed)
    of_b = resampled(lambda i: _quantile(y[i], q), len(y), block=block, num_resamples=count, seed=seed + 1)
    return _ratio(value, _log_ratio(of_b, of_a), min(len(x), len(y)), block, "block bootstrap 95 %, arms apart")


def mean_ratio(a: ArrayLike, b: ArrayLike, *, paired: bool = True) -> Ratio:
    """Mean of B over mean of A, for sums; of series of 0 and 1 it is the ratio of two shares, see `share_ratio`.

    Interval: Student's t in the log by the delta method, the variance times the correlation time of the terms
    y/mean(y) - x/mean(x) (paired) or of each arm (not paired); degrees of freedom from the samples they are worth.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) == 0:
        return Ratio(math.nan, math.nan, math.nan, math.nan, 0, "no samples")
    if is_binary(x) and is_binary(y):
        return share_ratio(x, y, paired=paired)
    n, method = min(len(x), len(y)), "t in the log 95 %" + (", paired" if paired else ", arms apart")
    if x.mean() <= 0 or y.mean() <= 0:
        value = float(y.mean() / x.mean()) if x.mean() > 0 else math.nan
        return Ratio(value, math.nan, math.nan, math.nan, n, method)
    value = float(y.mean() / x.mean())
    variance, worth = _log_variance(x, y, paired)
    return student(value, variance, worth, n, method)


def share_ratio(a: ArrayLike, b: ArrayLike, *, paired: bool = True) -> Ratio:
    """share(B) / share(A) of series of 0 and 1 in order of the plan.

    Paired: the wider of two intervals, the delta method's in the log (right for large ratios) and Newcombe's paired
    difference over share(A) (right near 1 and where all are good: nothing seen is not nothing there); p is McNemar's
    mid-p (Fagerland 2013). Not paired: MOVER from two Wilson intervals (Donner and Zou 2012); p from the pooled z.
    All with n divided by the correlation time.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if min(len(x), len(y)) == 0:
        return Ratio(math.nan, math.nan, math.nan, math.nan, 0, "no samples")
    return _paired_shares(x, y) if paired else _apart_shares(x, y)


def _paired_shares(x: Floats, y: Floats) -> Ratio:
    n, method = len(x), "paired shares 95 %"
    tau = correlation_time(y - x)
    both, only_a = float((x * y).sum()) / tau, float((x * (1 - y)).sum()) / tau
    only_b, neither = float(((1 - x) * y).sum()) / tau, float(((1 - x) * (1 - y)).sum()) / tau
    p = mcnemar_mid(round(only_a), round(only_b))
    share = float(x.mean())
    if share == 0:
        return Ratio(math.nan, math.nan, math.nan, p, n, method)
    difference = paired_share_difference(both, only_a, only_b, neither)
    low, high = max(0.0, 1 + difference.lo / share), 1 + difference.hi / share
    value = float(y.mean()) / share
    if value > 0:
        variance, worth = _log_variance(x, y, True)
        delta = student(value, variance, worth, n, method)
        low, high = min(low, delta.lo), max(high, delta.hi)
    return Ratio(value, low, high, p, n, method)


def _apart_shares(x: Floats, y: Floats) -> Ratio:
    n, method = min(len(x), len(y)), "shares 95 %, arms apart"
    in_a, in_b = float(x.mean()), float(y.mean())
    worth_a, worth_b = len(x) / correlation_time(x), len(y) / correlation_time(y)
    low_a, high_a = wilson(in_a, worth_a)
    low_b, high_b = wilson(in_b, worth_b)
    pooled = (in_a * worth_a + in_b * worth_b) / (worth_a + worth_b)
    error = math.sqrt(pooled * (1 - pooled) * (1 / worth_a + 1 / worth_b))
    p = 2 * normal_tail(abs(in_b - in_a) / error) if error > 0 else 1.0
    if in_a == 0:
        return Ratio(math.nan, math.nan, math.nan, p, n, method)
    product = in_a * in_b
    under = high_a * (2 * in_a - high_a)
    inner = product**2 - low_b * (2 * in_b - low_b) * under
    low = (product - math.sqrt(max(0.0, inner))) / under if under > 0 else in_b * low_b / max(high_a, 1e-12)
    over = low_a * (2 * in_a - low_a)
    inner = product**2 - high_b * (2 * in_b - high_b) * over
    high = (product + math.sqrt(max(0.0, inner))) / over if over > 0 else math.inf
    return Ratio(in_b / in_a, max(0.0, low), high, p, n, method)


def is_binary(series: Floats) -> bool:
    """Of 0 and 1 alone?"""
    return bool(((series == 0) | (series == 1)).all())


def _log_variance(x: Floats, y: Floats, paired: bool) -> tuple[float, float]:
    """(variance of log(mean(y) / mean(x)), independent samples it rests on)."""
    if paired:
        terms = y / y.mean() - x / x.mean()
        tau, n = correlation_time(terms), len(terms)
        return float(terms.var(ddof=1)) * tau / n if n > 1 else math.nan, n / tau
    parts = [(float((s / s.mean()).var(ddof=1)) * correlation_time(s) / len(s), len(s)) for s in (x, y) if len(s) > 1]
    if len(parts) < 2:
        return math.nan, 1.0
    return sum(v for v, _ in parts), min(len(x) / correlation_time(x), len(y) / correlation_time(y))


def student(value: float, variance: float, worth: float, n: int, method: str) -> Ratio:
    """Interval and p of a ratio from the variance of its log. No variance: the ratio is what it is."""
    if math.isnan(variance) or worth < 2:
        return Ratio(value, math.nan, math.nan, math.nan, n, method)
    error = math.sqrt(variance)
    if error < 1e-12:
        return Ratio(value, value, value, 1.0 if abs(math.log(value)) < 1e-12 else 0.0, n, method)
    half = t_quantile(0.975, worth - 1) * error
    p = 2 * t_tail(abs(math.log(value)) / error, worth - 1)
    return Ratio(value, value * math.exp(-half), value * math.exp(half), p, n, method)


def ratio_of_repeats(log_ratios: Sequence[float]) -> Ratio:
    """Geometric mean of the ratios of k pairs of runs, with Student's interval over the pairs: what a repeat of the
    whole experiment would vary by. nan bounds for fewer than 2 pairs."""
    x = np.asarray(log_ratios, dtype=np.float64)
    k = len(x)
    method = f"t interval 95 % over {k} pairs of runs"
    if k < 2:
        return Ratio(float(np.exp(x.mean())) if k else math.nan, math.nan, math.nan, math.nan, k, method)
    mean, error = float(x.mean()), float(x.std(ddof=1)) / math.sqrt(k)
    if error <= 0:
        return Ratio(math.exp(mean), math.exp(mean), math.exp(mean), 1.0 if mean == 0 else 0.0, k, method)
    half = t_quantile(0.975, k - 1) * error
    p = 2 * t_tail(abs(mean) / error, k - 1)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), p, k, method)


class Location(NamedTuple):
    value: float
    lo: float
    hi: float


def hodges_lehmann(differences: ArrayLike, confidence: float = 0.95) -> Location:
    """Median of the means of all pairs of differences, with the interval of the signed-rank test (Hollander and Wolfe).

    Of log(b) - log(a) it is the log of the typical ratio. Longer series are thinned evenly.
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) > _MAX_WALSH:
        d = d[np.linspace(0, len(d) - 1, _MAX_WALSH).astype(np.int64)]
    n = len(d)
    if n == 0:
        return Location(math.nan, math.nan, math.nan)
    rows, columns = np.triu_indices(n)
    walsh = np.sort((d[rows] + d[columns]) / 2)
    value = float(np.median(walsh))
    if n < 6:  # no two-sided 95 % interval exists
        return Location(value, math.nan, math.nan)
    z = normal_quantile(0.5 + confidence / 2)
    spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    skip = max(0, math.floor(n * (n + 1) / 4 - z * spread))
    return Location(value, float(walsh[skip]), float(walsh[len(walsh) - 1 - skip]))


class NotWorse(NamedTuple):
    answer: str  # "not worse", "worse", "inconclusive"
    bound: float  # one-sided 95 % bound of the ratio, on the harmful side


def non_inferior(ratio: Ratio, margin: float, *, higher_is_better: bool) -> NotWorse:
    """Is B at most `margin` (0.03: three per cent) worse than A? By the 95 % interval of the ratio, so one-sided 2.5 %.

    "worse": the whole interval lies beyond the margin. "inconclusive": it straddles the margin.
    """
    if math.isnan(ratio.lo) or math.isnan(ratio.hi):
        return NotWorse("inconclusive", math.nan)
    limit = 1 - margin if higher_is_better else 1 + margin
    bound = ratio.lo if higher_is_better else ratio.hi
    if (bound >= limit) if higher_is_better else (bound <= limit):
        return NotWorse("not worse", bound)
    beyond = ratio.hi < limit if higher_is_better else ratio.lo > limit
    return NotWorse("worse" if beyond else "inconclusive", bound)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p of each test of a family (Holm 1979): reject those below alpha, and all errors together stay below it.

    nan stays nan and is no member of the family.
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    highest = 0.0
    for place, (p, index) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - place) * p))
        adjusted[index] = highest
    return adjusted
