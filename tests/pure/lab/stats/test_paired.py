"""Ratios, shifts, margins, families."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.lab.stats import (
    Ratio,
    block_indices,
    detectable_ratio,
    hodges_lehmann,
    holm,
    mean_estimate,
    mean_ratio,
    non_inferior,
    pairs_needed,
    quantile_ratio,
    ratio_of_repeats,
)


def test_pairing_sees_what_arms_apart_cannot() -> None:
    rng = np.random.default_rng(0)
    a = rng.lognormal(0, 1, 200)
    b = a * 1.05 * rng.lognormal(0, 0.02, 200)
    for found in (mean_ratio(a, b), quantile_ratio(a, b, 0.5)):
        assert found.value == pytest.approx(1.05, abs=0.03)
        assert found.p < 0.05
        assert found.lo <= found.value <= found.hi
    assert mean_ratio(a, b, paired=False).p > 0.05
    assert quantile_ratio(a, b, 0.5, paired=False).p > 0.05


def test_same_seed_same_interval() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.exponential(size=(2, 100))
    assert quantile_ratio(a, b, 0.5, seed=3) == quantile_ratio(a, b, 0.5, seed=3)
    assert quantile_ratio(a, b, 0.5, seed=3) != quantile_ratio(a, b, 0.5, seed=4)


def test_failures_are_infinitely_late() -> None:
    a = np.full(100, 1.0)
    b = np.where(np.arange(100) % 6 == 0, math.inf, 1.0)  # a sixth failed
    assert quantile_ratio(a, b, 0.5).value == 1.0
    found = quantile_ratio(a, b, 0.95)
    assert math.isinf(found.value)
    assert found.p < 0.05
    assert math.isnan(quantile_ratio(b, b, 0.95).value)


def test_a_quantile_of_zero_has_a_ratio_and_bounds_as_far_as_they_go() -> None:
    rng = np.random.default_rng(0)
    a, b = 0.001 * rng.lognormal(0, 0.5, 24), 0.2 * rng.lognormal(0, 0.01, 24)
    a[:14] = 0.0  # tokens that came in one read
    found = quantile_ratio(a, b, 0.5)
    assert (found.value, found.hi) == (math.inf, math.inf)
    assert found.lo > 50
    assert found.p < 0.05
    zeros = np.zeros(24)
    assert math.isnan(quantile_ratio(zeros, zeros, 0.5).value)
    assert quantile_ratio(b, zeros, 0.5).value == 0.0


def test_resamples_in_which_both_are_zero_are_ties() -> None:
    a = np.r_[np.zeros(11), np.full(13, 0.001)]
    found = quantile_ratio(a, a, 0.5)
    assert (found.value, found.lo, found.hi) == (1.0, 1.0, 1.0)
    assert found.p == 1.0


def test_no_samples() -> None:
    assert math.isnan(mean_ratio([], []).value)
    assert math.isnan(quantile_ratio([], [], 0.5).value)
    assert math.isnan(mean_ratio([0.0, 0.0], [1.0, 2.0]).value)


def test_repeats_by_student() -> None:
    """Logs 0.1, 0.2, 0.3: mean 0.2, error 0.1 / sqrt(3), t(2) = 4.303."""
    found = ratio_of_repeats([0.1, 0.2, 0.3])
    assert math.log(found.lo) == pytest.approx(0.2 - 4.3027 * 0.1 / math.sqrt(3), abs=1e-4)
    assert found.value == pytest.approx(math.exp(0.2))
    assert math.isnan(ratio_of_repeats([0.1]).lo)


def test_hodges_lehmann_by_hand() -> None:
    """1, 2, 6: the means of pairs are 1, 1.5, 3.5, 2, 4, 6; their median 2.75."""
    found = hodges_lehmann([1.0, 2.0, 6.0])
    assert found.value == pytest.approx(2.75)
    assert math.isnan(found.lo)
    assert hodges_lehmann(np.r_[np.zeros(50), 1e9]).value == 0.0  # an outlier moves nothing


@pytest.mark.parametrize(
    ("lo", "hi", "higher", "answer"),
    [
        (0.98, 1.02, True, "not worse"),
        (0.96, 1.02, True, "inconclusive"),
        (0.90, 0.96, True, "worse"),
        (0.99, 1.04, False, "inconclusive"),
        (0.99, 1.02, False, "not worse"),
        (1.04, 1.10, False, "worse"),
        (math.nan, math.nan, True, "inconclusive"),
    ],
)
def test_not_worse_than_a_margin(lo: float, hi: float, higher: bool, answer: str) -> None:
    assert non_inferior(Ratio(1.0, lo, hi, 0.5, 9, ""), 0.03, higher_is_better=higher).answer == answer


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    adjusted = holm([0.01, math.nan])
    assert adjusted[0] == 0.01
    assert math.isnan(adjusted[1])


def test_blocks_keep_neighbours() -> None:
    index = block_indices(20, 5, 3, np.random.default_rng(0))
    assert index.shape == (3, 20)
    steps = np.diff(index.reshape(3, 4, 5), axis=2) % 20
    assert (steps == 1).all()


def test_mean_of_a_series() -> None:
    found = mean_estimate(np.arange(100.0), scale=2.0, block=1)
    assert found.value == 99.0
    assert found.lo is not None
    assert found.hi is not None
    assert found.lo < 99.0 < found.hi
    assert mean_estimate([3.0]).lo is None
    assert mean_estimate([0.0, 0.0, 0.0, 50.0]).lo == 0.0  # a rate has no negative bound


def test_pairs_needed_by_hand() -> None:
    """(1.96 + 0.8416) * 0.1 / log(1.05) = 5.742; squared 32.97."""
    assert pairs_needed(1.05, 0.1) == 33
    assert detectable_ratio(33, 0.1) == pytest.approx(1.05, abs=1e-3)
    with pytest.raises(ConfigError):
        pairs_needed(1.0, 0.1)
    with pytest.raises(ConfigError):
        detectable_ratio(1, 0.1)
