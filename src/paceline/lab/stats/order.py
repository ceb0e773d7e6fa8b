"""Percentiles by order statistics: the value, an interval without assumptions, or a refusal.

A percentile is the inverted CDF, so "p99 <= L" holds if and only if at least 99 % of the samples are <= L. The
interval of the q-quantile takes the ranks l < u of the sorted sample with P(X_l <= quantile) and P(X_u >= quantile)
from the binomial law (David and Nagaraja, Order Statistics, 7.1). Samples may be +inf: requests that never got there.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from paceline.contracts.artefact import Estimate
from paceline.contracts.slo import min_samples
from paceline.lab.stats.dependence import Floats, correlation_time
from paceline.lab.stats.distributions import binomial_quantile

METHOD = "order statistic 95 %"
ONE_SIDED = "order statistic 95 %, upper bound one-sided"
INFINITE = "infinite: the percentile lies among requests that failed"
INFINITE_BOUND = "the upper bound lies among requests that failed"


@lru_cache(maxsize=4096)
def interval_ranks(n: int, q: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """1-based ranks (l, u) of a two-sided interval of the q-quantile, each side of error at most (1-confidence)/2.

    None where the sample is too small for that side. n=1000, q=0.99 gives (983, 997).
    """
    tail = (1.0 - confidence) / 2.0
    if n < 1:
        return None, None
    # the quantile is the smallest k with P(Bin <= k) >= tail; rank l errs with P(Bin <= l - 1), rank u with P(Bin >= u)
    low = binomial_quantile(tail, n, q)
    high = binomial_quantile(1.0 - tail, n, q) + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def ranks_for(n: int, n_eff: float, q: float) -> tuple[int | None, int | None, str]:
    """(l, u, method) for n samples worth n_eff: the ranks of a sample of size n_eff, stretched to n.

    Where the two-sided upper bound does not exist but the one-sided one does, u is n and the method says so.
    """
    worth = max(1, min(n, math.floor(n_eff + 1e-9)))
    low, high = interval_ranks(worth, q)
    method = METHOD
    if high is None and worth >= min_samples(q):
        high, method = worth, ONE_SIDED
    stretch = (n + 1) / (worth + 1)
    lo = None if low is None else max(1, math.floor(low * stretch))
    hi = None if high is None else min(n, math.ceil(high * stretch))
    return lo, hi, method


def refusal(n: int, q: float) -> str:
    """Why the percentile of n samples is refused; empty if it is not."""
    need = min_samples(q)
    name = f"p{100 * q:g}"
    return f"{n} samples; {name} needs {need}" if n < need else ""


def percentile_estimate(samples: ArrayLike, q: float, *, unit: str = "s", ordered: Floats | None = None) -> Estimate:
    """The q-quantile of `samples` (in order of time, for the dependence between neighbours) with its 95 % interval.

    `ordered` may hold the same samples sorted. nan is not allowed. Refused below contracts.slo.min_samples(q): value
    None and a reason. A value or bound at +inf is None too, with the reason INFINITE or INFINITE_BOUND.
    """
    x = np.asarray(samples, dtype=np.float64)
    n = len(x)
    why = refusal(n, q)
    if why:
        return Estimate(n=n, unit=unit, method=METHOD, reason=why)
    rising = np.sort(x) if ordered is None else ordered
    value = float(rising[max(0, math.ceil(q * n - 1e-9) - 1)])
    tau = max(
        correlation_time(x <= value), correlation_time(x < value)
    )  # the value may be the largest, or the smallest
    n_eff = n / tau
    low, high, method = ranks_for(n, n_eff, q)
    lo = None if low is None else float(rising[low - 1])
    hi = None if high is None else float(rising[high - 1])
    reason = "" if high is not None else f"worth {n_eff:.0f} independent samples: no upper bound"
    return finite(value, lo, hi, n=n, n_eff=n_eff, method=method, unit=unit, reason=reason)


def finite(
    value: float, lo: float | None, hi: float | None, *, n: int, n_eff: float, method: str, unit: str, reason: str = ""
) -> Estimate:
    """An estimate whose infinite parts are None, with the reason told."""
    if math.isinf(value):
        reason = INFINITE
    elif hi is not None and math.isinf(hi):
        reason = INFINITE_BOUND
    return Estimate(
        value=value if math.isfinite(value) else None,
        lo=lo if lo is not None and math.isfinite(lo) else None,
        hi=hi if hi is not None and math.isfinite(hi) else None,
        n=n,
        n_eff=n_eff,
        method=method,
        unit=unit,
        reason=reason,
    )


def is_infinite(estimate: Estimate) -> bool:
    """The percentile is not missing: it is +inf, since too many requests failed."""
    return estimate.value is None and estimate.reason == INFINITE
