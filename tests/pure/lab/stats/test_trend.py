"""Slopes, trends, jumps, leaks, warm-up: on series whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from paceline.lab.stats import leak, mann_kendall, pettitt, theil_sen, warmup_length
from paceline.lab.stats.dependence import Floats


def ar(n: int, rho: float, rng: np.random.Generator) -> Floats:
    noise = rng.normal(size=n + 100) * math.sqrt(1 - rho * rho)
    return np.asarray(lfilter([1.0], [1.0, -rho], noise)[100:])


def test_theil_sen_ignores_outliers() -> None:
    x = np.arange(50.0)
    y = 2.0 * x + 1.0
    y[::10] += 1e6
    found = theil_sen(x, y)
    assert found.value == pytest.approx(2.0)
    assert found.lo <= 2.0 <= found.hi
    assert math.isnan(theil_sen([1.0, 2.0], [1.0, 2.0]).value)


def test_mann_kendall_by_hand() -> None:
    """1..10: all 45 pairs rise; variance 125, z = 44 / sqrt(125)."""
    found = mann_kendall(np.arange(10.0))
    assert found.tau == 1.0
    assert found.z == pytest.approx(44 / math.sqrt(125))
    assert mann_kendall(np.ones(20)).p == 1.0


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_no_trend_no_jump_rarely_cries(rho: float) -> None:
    """Level 5 % on noise, neighbours alike or not; without the correction 0.6 gives about 30 %."""
    rng = np.random.default_rng(5)
    runs = [ar(100, rho, rng) for _ in range(150)]
    assert np.mean([mann_kendall(x).p < 0.05 for x in runs]) <= 0.10
    assert np.mean([pettitt(x).p < 0.05 for x in runs]) <= 0.10


def test_trend_and_jump_are_found() -> None:
    rng = np.random.default_rng(6)
    assert np.mean([mann_kendall(ar(100, 0.3, rng) + np.linspace(0, 2, 100)).p < 0.05 for _ in range(100)]) >= 0.8
    step = np.r_[np.zeros(60), np.full(40, 2.0)]
    shifts = [pettitt(ar(100, 0.3, rng) + step) for _ in range(100)]
    assert np.mean([s.p < 0.05 for s in shifts]) >= 0.9
    assert abs(np.median([s.at for s in shifts]) - 60) <= 3


def test_leak() -> None:
    t = np.arange(40) * 60.0
    rng = np.random.default_rng(7)
    noise = rng.normal(0, 1e5, 40)
    growing = leak(t, 1e8 + 1000.0 * t + noise, max_per_day=50e6)  # 1 kB/s is 86 MB a day
    assert growing.leaks
    assert growing.per_day == pytest.approx(86.4e6, rel=0.2)
    assert not leak(t, 1e8 + 1000.0 * t + noise, max_per_day=200e6).leaks
    cries = [leak(t, 1e8 + rng.normal(0, 1e5, 40), max_per_day=0.0).leaks for _ in range(200)]
    assert np.mean(cries) <= 0.05


def test_warm_up_is_cut_where_it_ends() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(10, 1, 300)
    x[:60] += np.linspace(20, 2, 60)
    assert 40 <= warmup_length(x) <= 90
    assert np.mean([warmup_length(rng.normal(10, 1, 300)) for _ in range(50)]) < 60
    assert warmup_length(np.ones(10)) == 0
