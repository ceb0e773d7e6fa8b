"""Charts of values that a logarithm does not like."""

from __future__ import annotations

import warnings

import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.lab.report.charts.latency import Series, latency_chart
from paceline.lab.report.charts.ratios import RatioRow, ratio_chart


def test_times_of_zero_draw_without_a_warning():
    for samples in (np.zeros(20), np.r_[np.zeros(10), np.full(10, 0.02)]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            chart = latency_chart("tpot", "TPOT", "time per token", [Series("all", samples)], [("target", 0.05)])
        assert chart is not None
        log, plain = (view.layout for view in chart.views)
        assert np.isfinite(log["xaxis.range"]).all()
        assert log["xaxis.range"][0] < log["xaxis.range"][1]
        assert plain["xaxis.range"][1] > 0


def test_an_interval_that_begins_at_zero_is_drawn():
    rows = [
        RatioRow(
            name="goodput", before="1", after="0.1", ratio=Estimate(value=0.1, lo=0.0, hi=0.4), more_is_better=True
        )
    ]
    chart = ratio_chart(rows)
    assert chart is not None
    assert np.isfinite(chart.layout["xaxis"]["range"]).all()
    assert chart.table is not None
