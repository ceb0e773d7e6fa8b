"""Latency curves of samples that a logarithm does not like."""

from __future__ import annotations

import warnings

import numpy as np

from paceline.lab.report.charts.latency import Series, latency_chart


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
