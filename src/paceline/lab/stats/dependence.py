"""How many independent samples a dependent series is worth.

Requests that wait in one queue share their fate, so neighbours are alike and n of them say less than n. With the
integrated autocorrelation time tau = 1 + 2 * sum(rho_k), they are worth n / tau (Sokal 1997; the sum is cut by Geyer's
initial positive sequence, 1992). A series whose first correlation cannot be told from noise counts as independent:
else the noise of the estimate alone would widen every interval.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_ONE_SIDED_95 = 1.645
_BIAS = 2.5  # found by simulation: tests/pure/lab/stats/test_coverage.py


def autocorrelation(series: ArrayLike) -> Floats:
    """rho_k for k = 0 .. n-1, biased form (divides by n). A constant series has none: [1, 0, 0, ...]."""
    x = np.asarray(series, dtype=np.float64)
    n = len(x)
    x = x - x.mean()
    variance = float(x @ x)
    if variance <= 0.0:
        flat = np.zeros(n)
        flat[:1] = 1.0
        return flat
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    return np.asarray(np.fft.irfft(spectrum * np.conj(spectrum), size)[:n] / variance)


def correlation_time(series: ArrayLike) -> float:
    """tau >= 1, in samples of `series` (in order of time). 1 where no dependence shows or fewer than 8 samples."""
    x = np.asarray(series, dtype=np.float64)
    n = len(x)
    if n < 8:
        return 1.0
    centred = x - x.mean()
    variance = float(centred @ centred)
    if variance <= 1e-300:
        return 1.0
    first = float(centred[:-1] @ centred[1:]) / variance
    if first <= _ONE_SIDED_95 / math.sqrt(n):
        return 1.0
    rho = autocorrelation(x)
    total, before = 0.0, math.inf
    for lag in range(0, n - 1, 2):  # sums of neighbours are positive and fall for a reversible chain; noise does not
        pair = float(rho[lag] + rho[lag + 1])
        if pair <= 0.0:
            break
        before = min(before, pair)
        total += before
    tau = max(1.0, 2.0 * total - 1.0)
    # the mean is taken from the same series, which hides part of slow changes: the more, the longer tau is against n
    return float(min(tau / max(0.1, 1.0 - _BIAS * tau / n), n))


def effective_samples(series: ArrayLike) -> float:
    """n / tau, between 1 and n; 0 for an empty series."""
    n = len(np.asarray(series))
    return 0.0 if n == 0 else n / correlation_time(series)


def block_length(series: ArrayLike) -> int:
    """Length of the blocks that a bootstrap should keep whole: long against tau, short against n.

    1 without dependence. Else ceil(1.5 * tau^(2/3) * n^(1/3)), the rate of Politis and White (2004), at most n / 4.
    """
    n = len(np.asarray(series))
    tau = correlation_time(series)
    if tau <= 1.0:
        return 1
    return int(min(max(2, math.ceil(1.5 * tau ** (2 / 3) * n ** (1 / 3))), max(1, n // 4)))
