"""Shares and exact tests against published or hand-computed values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.lab.stats import (
    clopper_pearson,
    mcnemar_exact,
    mcnemar_mid,
    paired_share_difference,
    share_estimate,
    share_ratio,
    wilson,
)


def test_wilson() -> None:
    low, high = wilson(0.5, 10)
    assert (round(low, 4), round(high, 4)) == (0.2366, 0.7634)
    assert wilson(1.0, 60)[1] == 1.0
    assert round(wilson(1.0, 60)[0], 3) == 0.940  # nothing seen is not nothing there


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_share(n: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(0, n))
    found = share_estimate(good, n)
    assert found.value is not None
    assert found.lo is not None
    assert found.hi is not None
    assert 0 <= found.lo <= found.value <= found.hi <= 1


def test_no_requests_is_no_share() -> None:
    assert share_estimate(0, 0).value is None


def test_clopper_pearson() -> None:
    low, high = clopper_pearson(0, 10)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 10))


def test_mcnemar() -> None:
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(0, 5) == pytest.approx(2 / 32)
    assert mcnemar_exact(1, 9) == pytest.approx(2 * 11 / 1024)
    assert mcnemar_mid(0, 5) == pytest.approx(1 / 32)
    assert mcnemar_mid(4, 4) == 1.0


def test_paired_difference() -> None:
    """Newcombe's own example: 36 and 12, 2 and 0 of 50; -0.20 with method 10 from -0.3208 ... to -0.0569."""
    found = paired_share_difference(36, 12, 2, 0)
    assert found.value == pytest.approx(-0.20)
    assert (found.lo, found.hi) == (pytest.approx(-0.3329, abs=0.02), pytest.approx(-0.0569, abs=0.02))


def test_equal_arms_are_not_certain() -> None:
    ratio = share_ratio([1.0] * 60, [1.0] * 60)
    assert (ratio.value, ratio.p) == (1.0, 1.0)
    assert 0.9 < ratio.lo < 0.97
    assert ratio.hi > 1.0


def test_an_arm_without_any_good_request() -> None:
    ratio = share_ratio([0.0] * 40, [1.0] * 40)
    assert ratio.value != ratio.value  # no ratio
    assert ratio.p < 1e-6
