"""A ratio of sums over parts that differ by design, such as rates: one series made of all would take the steps between
its parts for dependence, and find no difference at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from paceline.lab.stats.dependence import Floats, correlation_time
from paceline.lab.stats.distributions import t_quantile
from paceline.lab.stats.paired import Ratio, is_binary, student
from paceline.lab.stats.proportion import paired_share_difference


def stratified_ratio(parts: Sequence[tuple[ArrayLike, ArrayLike]]) -> Ratio:
    """Sum of B over sum of A. `parts`: (A, B) of each part, [n] samples of the same requests in order of the plan.

    The wider of two intervals: the delta method's in the log, where each part has its own variance and correlation
    time, and the parts' differences over A's sum, their half widths added in quadrature (MOVER, Zou and Donner 2008):
    the first is right for large ratios, the second where nothing was seen to differ. p is of the first.
    """
    series = [(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)) for a, b in parts if np.size(a)]
    n, method = sum(len(x) for x, _ in series), f"sums of {len(series)} parts 95 %, paired"
    over_a, over_b = sum(float(x.sum()) for x, _ in series), sum(float(y.sum()) for _, y in series)
    if over_a <= 0:
        return Ratio(math.nan, math.nan, math.nan, math.nan, n, method)
    value = over_b / over_a
    bounds = [_difference(x, y) for x, y in series]
    low = value - math.sqrt(sum(down**2 for down, _ in bounds)) / over_a
    high = value + math.sqrt(sum(up**2 for _, up in bounds)) / over_a
    if over_b <= 0:
        return Ratio(value, max(0.0, low), high, math.nan, n, method)
    variance, worth = 0.0, 1.0 - len(series)
    for x, y in series:
        residual = y - value * x
        tau = correlation_time(residual)
        variance += len(x) * tau * float(residual.var(ddof=1)) if len(x) > 1 else math.nan
        worth += len(x) / tau
    delta = student(value, variance / over_b**2, worth, n, method)
    return Ratio(value, max(0.0, min(low, delta.lo)), max(high, delta.hi), delta.p, n, method)


def _difference(x: Floats, y: Floats) -> tuple[float, float]:
    """How far below and above its value the difference of the sums may lie, 95 % each."""
    n, tau = len(x), correlation_time(y - x)
    if is_binary(x) and is_binary(y):
        cells = [float((u * v).sum()) / tau for u, v in ((x, y), (x, 1 - y), (1 - x, y), (1 - x, 1 - y))]
        found = paired_share_difference(*cells)
        return n * (found.value - found.lo), n * (found.hi - found.value)
    if n / tau < 2:
        return math.nan, math.nan
    half = t_quantile(0.975, n / tau - 1) * float((y - x).std(ddof=1)) * math.sqrt(n * tau)
    return half, half
