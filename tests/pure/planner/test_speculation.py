"""Draft lengths from measured curves: tokens per step of four published runs (InferenceX, SPEED-Bench coding)."""

import pytest

from paceline.errors import ConfigError
from paceline.planner.speculation import check_curve, choose_drafts, independent_length

QWEN35_MTP = (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21)
QWEN35_MTP_PLAIN = (1.92, 2.70, 3.33, 3.83, 4.20, 4.48, 4.73, 4.71)


def flat(num_tokens):
    """A step bound by reading weights up to 256 tokens, then by arithmetic."""
    return max(10.0, 10.0 * num_tokens / 256)


def test_the_independent_estimate_is_an_upper_bound_of_a_measured_curve():
    for curve in (QWEN35_MTP, QWEN35_MTP_PLAIN):
        for k, length in enumerate(curve, start=1):
            assert independent_length(curve[0] - 1, k) >= length - 1e-9
    assert independent_length(0.93, 8) == pytest.approx(6.85, abs=0.01)  # 5.21 were measured


def test_k_follows_the_curve_and_not_the_bound():
    measured = choose_drafts(40, QWEN35_MTP, flat, draft_ms=0.35)
    bound = choose_drafts(
        40, [independent_length(0.93, k) for k in range(1, 9)], flat, draft_ms=0.35,
        basis="upper bound: independent acceptance",
    )  # fmt: skip
    assert measured.num_drafts < bound.num_drafts
    assert measured.speedup < bound.speedup
    assert "upper bound" in bound.basis
    assert measured.basis == "measured curve"


@pytest.mark.parametrize(("num_rows", "largest"), [(1, 8), (40, 6), (128, 1), (256, 0)])
def test_more_rows_leave_fewer_drafts(num_rows, largest):
    choice = choose_drafts(num_rows, QWEN35_MTP, flat)
    assert choice.num_drafts <= largest
    assert (choice.num_drafts == 0) == (choice.speedup == 1.0)


def test_a_choice_that_does_not_pay_is_none():
    choice = choose_drafts(512, QWEN35_MTP, flat)
    assert (choice.num_drafts, choice.speedup) == (0, 1.0)
    assert max(choice.speedups) < 1


@pytest.mark.parametrize("curve", [(), (0.9,), (2.1,), (1.9, 3.2)])
def test_what_is_no_curve_is_refused(curve):
    with pytest.raises(ConfigError, match="not an acceptance curve"):
        check_curve(curve)


def test_an_acceptance_rate_beyond_one_is_refused():
    with pytest.raises(ConfigError):
        independent_length(1.1, 3)
