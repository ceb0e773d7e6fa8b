from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.lab.report.curves import MAX_POINTS, bins, in_flight, percentile_in, rate_in, slower_than, thinned


def test_the_curve_says_the_share_that_is_slower():
    times, shares = slower_than(np.array([3.0, 1.0, np.nan, 2.0, 4.0]))
    assert times.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert shares.tolist() == [0.75, 0.5, 0.25, 0.125]  # the slowest is drawn at half a sample
    assert len(slower_than(np.array([np.nan]))[0]) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=3000))
def test_every_point_of_the_curve_is_true(samples: list[float]):
    values = np.array(samples)
    times, shares = slower_than(values)
    assert len(times) <= min(len(samples), MAX_POINTS)
    for time, share in list(zip(times, shares, strict=True))[:-1]:
        # of equal times only the last point has gone past them all
        assert (values > time).mean() - 1e-9 <= share <= (values >= time).mean() + 1e-9
    assert times[0] == values.min()
    assert times[-1] == values.max()


def test_in_flight_counts_what_is_sent_and_not_over():
    when, level = in_flight(np.array([0.0, 1.0, np.nan, 2.0]), np.array([1.5, 3.0, np.nan, np.nan]))
    assert when.tolist() == [0.0, 1.0, 1.5, 2.0, 3.0]
    assert level.tolist() == [1, 2, 1, 2, 1]  # the last one was never closed


@pytest.mark.parametrize(("span", "width"), [(60, 2), (75, 2), (600, 20), (4, 0.1), (0.5, 0.02)])
def test_bins_have_widths_people_count_in(span, width):
    edges = bins(span)
    assert np.diff(edges) == pytest.approx(width)
    assert edges[-1] >= span


def test_rates_and_quantiles_of_bins():
    edges = np.array([0.0, 2.0, 4.0])
    assert rate_in(edges, np.array([0.1, 0.2, 1.9, 3.0, np.nan])).tolist() == [1.5, 0.5]
    when = np.concatenate([np.full(20, 1.0), np.full(3, 3.0)])
    found = percentile_in(edges, when, np.concatenate([np.arange(1.0, 21.0), np.ones(3)]), 0.95)
    assert found[0] == 19.0
    assert np.isnan(found[1]), "three samples say nothing"


def test_thinning_keeps_every_kth():
    assert thinned(10, 20).tolist() == list(range(10))
    assert len(thinned(100_000, 1500)) <= 1500
