"""Percentiles: ranks, refusals, infinite samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from paceline.contracts.slo import percentile
from paceline.lab.stats import interval_ranks, is_infinite, percentile_estimate
from paceline.lab.stats.order import ONE_SIDED, ranks_for


def test_ranks_known_from_tables() -> None:
    assert interval_ranks(1000, 0.99) == (983, 997)
    assert interval_ranks(20, 0.5) == (6, 15)  # sign test, n = 20
    assert interval_ranks(5, 0.5) == (None, None)
    assert interval_ranks(6, 0.5) == (1, 6)


@pytest.mark.parametrize("n", [7, 60, 299, 1000])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
def test_ranks_are_the_tightest_that_hold(n: int, q: float) -> None:
    low, high = interval_ranks(n, q)
    if low is not None:
        assert binom.cdf(low - 1, n, q) <= 0.025
        assert binom.cdf(low, n, q) > 0.025
    if high is not None:
        assert binom.cdf(high - 1, n, q) >= 0.975
        assert binom.cdf(high - 2, n, q) < 0.975


def test_a_bound_on_one_side_where_two_do_not_exist() -> None:
    low, high, method = ranks_for(299, 299, 0.99)
    assert (low is not None, high, method) == (True, 299, ONE_SIDED)
    assert ranks_for(600, 600, 0.99)[2] != ONE_SIDED


@pytest.mark.parametrize(("q", "need"), [(0.95, 59), (0.99, 299), (0.999, 2995), (0.5, 5)])
def test_thin_percentiles_are_refused(q: float, need: int) -> None:
    assert percentile_estimate(np.arange(need - 1.0), q).value is None
    assert percentile_estimate(np.arange(float(need)), q).value is not None


def test_the_value_is_the_one_definition() -> None:
    x = np.random.default_rng(0).exponential(size=777)
    for q in (0.5, 0.9, 0.95, 0.99):
        assert percentile_estimate(x, q).value == percentile(x.tolist(), q)


def test_p_at_most_the_limit_means_a_share_at_most_the_limit() -> None:
    x = [1.0] * 95 + [2.0] * 5
    assert percentile_estimate(x, 0.95).value == 1.0
    assert percentile_estimate([*x, 2.0], 0.95).value == 2.0


def test_infinite_values_and_bounds_have_reasons() -> None:
    x = ([1.0] * 9 + [math.inf]) * 10
    p95 = percentile_estimate(x, 0.95)
    assert is_infinite(p95)
    assert p95.hi is None
    p90 = percentile_estimate(x, 0.90)
    assert p90.value == 1.0
    assert p90.hi is None
    assert "failed" in p90.reason
    assert not is_infinite(p90)


def test_dependent_samples_are_worth_less() -> None:
    rng = np.random.default_rng(3)
    x = np.repeat(rng.normal(size=60), 20)  # runs of twenty equal values
    alike = percentile_estimate(x, 0.5)
    shuffled = percentile_estimate(rng.permutation(x), 0.5)
    assert alike.n_eff < 150 < shuffled.n_eff
    assert alike.lo is not None
    assert alike.hi is not None
    assert shuffled.lo is not None
    assert shuffled.hi is not None
    assert alike.hi - alike.lo > shuffled.hi - shuffled.lo


def test_no_upper_bound_where_the_samples_are_worth_too_little() -> None:
    x = np.repeat(np.random.default_rng(4).normal(size=10), 30)
    found = percentile_estimate(x, 0.95)
    assert found.value is not None
    assert found.hi is None
    assert "independent" in found.reason
