"""Bootstrap intervals that keep neighbours together.

Seeds are arguments: the same data and seed give the same interval to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.contracts.artefact import Estimate
from paceline.lab.stats.dependence import Floats, block_length
from paceline.lab.stats.distributions import normal_quantile, t_quantile

Indices = NDArray[np.int64]

_CELLS = 4_000_000  # values held at once while resampling


def block_indices(n: int, block: int, num_resamples: int, rng: np.random.Generator) -> Indices:
    """[num_resamples, n] indices of a circular block bootstrap (Politis and Romano 1992); block 1 is the plain one."""
    if block <= 1:
        return rng.integers(0, n, size=(num_resamples, n))
    num_blocks = -(-n // block)
    starts = rng.integers(0, n, size=(num_resamples, num_blocks))
    indices = (starts[:, :, None] + np.arange(block)[None, None, :]) % n
    return np.asarray(indices.reshape(num_resamples, -1)[:, :n])


def resampled(
    statistic: Callable[[Indices], Floats], n: int, *, block: int = 1, num_resamples: int = 2000, seed: int = 0
) -> Floats:
    """`statistic` of every resample, [num_resamples]. It is called with [k, n] indices and gives [k] values."""
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // max(1, n))
    parts = [
        statistic(block_indices(n, block, min(step, num_resamples - done), rng))
        for done in range(0, num_resamples, step)
    ]
    return np.concatenate(parts)


def percentile_interval(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """The middle `confidence` of resampled values."""
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def small_sample_factor(worth: float) -> float:
    """By how much a bootstrap of `worth` independent blocks is too narrow: Student's t against the normal, and the
    variance's n / (n - 1)."""
    k = max(2.0, worth)
    return t_quantile(0.975, k - 1) / normal_quantile(0.975) * math.sqrt(k / (k - 1))


def mean_estimate(
    samples: ArrayLike, *, scale: float = 1.0, unit: str = "", block: int | None = None, seed: int = 0
) -> Estimate:
    """`scale` times the mean of a series in order of time, with a block bootstrap interval (block found if None)."""
    x = np.asarray(samples, dtype=np.float64)
    n = len(x)
    if n < 2:
        value = float(x[0]) * scale if n else None
        return Estimate(value=value, n=n, unit=unit, reason=f"{n} samples: no interval")
    size = block_length(x) if block is None else block
    means = resampled(lambda index: x[index].mean(axis=1), n, block=size, seed=seed)
    centre = float(x.mean())
    low, high = percentile_interval((centre + (means - centre) * small_sample_factor(n / size)) * scale)
    if x.min() >= 0:
        low = max(0.0, low)  # what is never negative has no negative mean
    return Estimate(
        value=float(x.mean()) * scale,
        lo=low,
        hi=high,
        n=n,
        n_eff=n / size,
        method=f"block bootstrap 95 %, blocks of {size}",
        unit=unit,
    )
