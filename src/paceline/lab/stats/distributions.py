"""Quantiles and tails of the few distributions the lab needs.

From `scipy.special`: importing `scipy.stats` takes a second, which every command of the lab would spend.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrik, betaincinv, ndtr, ndtri, stdtr, stdtrit

_ROUNDING = 1e-13


def normal_quantile(share: float) -> float:
    return float(ndtri(share))


def normal_tail(z: float) -> float:
    """P(Z > z)."""
    return float(ndtr(-z))


def t_quantile(share: float, degrees: float) -> float:
    return float(stdtrit(degrees, share))


def t_tail(x: float, degrees: float) -> float:
    """P(T > x)."""
    return float(stdtr(degrees, -x))


def beta_quantile(share: float, a: float, b: float) -> float:
    return float(betaincinv(a, b, share))


def binomial_quantile(share: float, n: int, p: float) -> int:
    """The smallest k with P(Bin(n, p) <= k) >= share, up to rounding."""
    k = max(0, math.ceil(float(bdtrik(share, n, p))))
    return k - 1 if k and float(bdtr(k - 1, n, p)) >= share - _ROUNDING else k


def fair_coin_p(heads: int, tosses: int) -> float:
    """Two-sided exact p-value of so many heads with a fair coin."""
    return min(1.0, 2 * float(bdtr(min(heads, tosses - heads), tosses, 0.5)))


def fair_coin_mass(heads: int, tosses: int) -> float:
    """P(exactly so many heads)."""
    return float(math.comb(tosses, heads) / 2**tosses)


def ranks(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Ranks from 1, [n]; equal values share the mean of theirs."""
    _, place, counts = np.unique(np.asarray(x), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
