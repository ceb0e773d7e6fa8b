"""The lab's few distributions against scipy.stats, which knows them all and takes a second to import."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest, norm, rankdata, t

from paceline.lab.stats import distributions as ours


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.8, 0.975])
def test_quantiles(share: float) -> None:
    assert ours.normal_quantile(share) == pytest.approx(norm.ppf(share), abs=1e-12)
    for degrees in (1, 2.5, 4, 30):
        assert ours.t_quantile(share, degrees) == pytest.approx(t.ppf(share, degrees), rel=1e-9, abs=1e-9)
    for a, b in ((1, 5), (3, 1), (40, 7)):
        assert ours.beta_quantile(share, a, b) == pytest.approx(beta.ppf(share, a, b), rel=1e-9)
    for n in (1, 2, 7, 59, 300):
        for p in (0.01, 0.5, 0.95, 0.99):
            assert ours.binomial_quantile(share, n, p) == int(binom.ppf(share, n, p))


def test_tails_and_coins() -> None:
    for x in (-2.0, 0.0, 1.3, 6.0):
        assert ours.normal_tail(x) == pytest.approx(norm.sf(x), rel=1e-12)
        assert ours.t_tail(x, 5) == pytest.approx(t.sf(x, 5), rel=1e-9)
    for heads, tosses in ((0, 1), (3, 6), (2, 9), (12, 40)):
        assert ours.fair_coin_p(heads, tosses) == pytest.approx(binomtest(heads, tosses, 0.5).pvalue, rel=1e-12)
        assert ours.fair_coin_mass(heads, tosses) == pytest.approx(binom.pmf(heads, tosses, 0.5), rel=1e-12)


def test_ranks_share_what_is_equal() -> None:
    x = np.array([3.0, 1.0, 3.0, 2.0, 3.0, np.inf, 1.0])
    assert ours.ranks(x).tolist() == rankdata(x).tolist()
