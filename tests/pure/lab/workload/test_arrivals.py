"""Arrivals against their laws, with fixed seeds; bounds are five standard deviations or wider."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.lab.workload.arrivals import (
    Arrival,
    Burst,
    Closed,
    Constant,
    Gamma,
    Mmpp,
    Periodic,
    Poisson,
    Ramp,
    Steps,
    Weibull,
    weibull_shape,
)

SPAN_S = 2000.0
RENEWAL = [
    (Poisson(rate=5), 1.0),
    (Gamma(rate=5, cv=0.5), 0.5),
    (Gamma(rate=5, cv=3.0), 3.0),
    (Weibull(rate=5, cv=0.7), 0.7),
    (Weibull(rate=5, cv=2.0), 2.0),
]
OPEN = [
    Constant(rate=2.0),
    *[process for process, _ in RENEWAL],
    Burst(size=7, every_s=11),
    Burst(size=7, every_s=11, spread_s=3),
    Ramp(start=1, end=4),
    Steps(rates=(1.0, 5.0, 0.0, 2.0)),
    Periodic(rate=3, period_s=50, amplitude=1.0),
    Mmpp(rates=(0.5, 8.0), dwell_s=(20, 5)),
    Mmpp(rates=(0.0, 4.0, 2.0), dwell_s=(5, 5, 10)),
]


@pytest.mark.parametrize(("process", "cv"), RENEWAL)
def test_renewal_gaps_have_their_mean_and_variation(process: Arrival, cv: float) -> None:
    gaps = np.diff(process.times(SPAN_S, 7))
    assert abs(gaps.mean() * 5 - 1) < 5 * cv / math.sqrt(len(gaps)) + 0.02
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.15)


@pytest.mark.parametrize("process", [process for process, _ in RENEWAL])
def test_bursty_processes_bring_the_asked_number_from_the_first_second(process: Arrival) -> None:
    """An ordinary renewal process of cv 3 would bring (cv^2 - 1) / 2 = 4 arrivals too many in each run."""
    counts = [len(process.times(20.0, seed)) for seed in range(600)]
    error = np.std(counts) / math.sqrt(len(counts))
    assert abs(np.mean(counts) - 100) < 5 * error


@pytest.mark.parametrize("process", OPEN)
def test_the_mean_rate_is_the_one_that_is_said(process: Arrival) -> None:
    counts = [len(process.times(400.0, seed)) for seed in range(40)]
    mean = process.mean_rps(400.0) * 400
    assert abs(np.mean(counts) - mean) < 5 * np.std(counts) / math.sqrt(len(counts)) + 0.02 * mean


@pytest.mark.parametrize("process", OPEN)
@given(span=st.floats(0.5, 300), seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_arrivals_rise_within_the_span_and_repeat(process: Arrival, span: float, seed: int) -> None:
    times = process.times(span, seed)
    assert np.all(np.diff(times) >= 0)
    assert len(times) == 0 or (times[0] >= 0 and times[-1] < span)
    assert np.array_equal(times, process.times(span, seed))


@pytest.mark.parametrize("process", [p for p in OPEN if isinstance(p, Constant | Poisson | Gamma | Weibull | Burst)])
@given(factor=st.floats(0.2, 5), seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_scaling_the_rate_is_another_clock(process: Arrival, factor: float, seed: int) -> None:
    before = process.times(100.0, seed)
    after = process.scaled(factor).times(100.0 / factor, seed) * factor
    num = min(len(before), len(after))
    assert abs(len(before) - len(after)) <= 1  # one arrival may fall on the very edge
    assert np.allclose(before[:num], after[:num], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("process", [p for p in OPEN if isinstance(p, Ramp | Steps | Periodic | Mmpp)])
def test_scaling_a_changing_rate_keeps_order_and_shape(process: Arrival) -> None:
    before, after = process.times(300.0, 3), process.scaled(4.0).times(300.0, 3)
    assert len(after) == pytest.approx(4 * len(before), rel=0.25)
    num = min(len(before), len(after))
    assert np.all(after[:num] <= before[:num] + 1e-9)
    for low in range(0, 300, 60):  # the same share of the load in each part
        share_before = np.mean((before >= low) & (before < low + 60))
        share_after = np.mean((after >= low) & (after < low + 60))
        assert share_after == pytest.approx(share_before, abs=0.12)


def test_constant_gaps_are_equal_and_streams_are_out_of_phase() -> None:
    first, second = Constant(rate=4).times(10, "a"), Constant(rate=4).times(10, "b")
    assert len(first) == len(second) == 40
    assert np.allclose(np.diff(first), 0.25)
    assert abs(first[0] - second[0]) > 1e-6


def test_bursts_come_at_once() -> None:
    times = Burst(size=5, every_s=10).times(40, 1)
    assert list(times) == [5.0] * 5 + [15.0] * 5 + [25.0] * 5 + [35.0] * 5


def test_a_ramp_ends_at_its_rate() -> None:
    times = Ramp(start=0, end=20).times(1000, 5)
    assert np.sum(times > 900) / 100 == pytest.approx(19, rel=0.15)
    assert np.sum(times < 100) / 100 == pytest.approx(1, rel=0.5)


def test_steps_hold_each_rate() -> None:
    times = Steps(rates=(2.0, 0.0, 10.0)).times(300, 5)
    assert np.sum(times < 100) == pytest.approx(200, abs=75)
    assert np.sum((times >= 100) & (times < 200)) == 0
    assert np.sum(times >= 200) == pytest.approx(1000, abs=160)


def test_a_period_swings() -> None:
    times = Periodic(rate=20, period_s=100, amplitude=0.9).times(1000, 5)
    phase = times % 100
    assert np.sum(phase < 50) / len(times) == pytest.approx(0.5 + 0.9 / math.pi, abs=0.03)


def test_mmpp_is_burstier_than_poisson() -> None:
    counts = np.bincount(Mmpp(rates=(1.0, 20.0), dwell_s=(10, 10)).times(3000, 2).astype(int), minlength=3000)
    assert counts.var() / counts.mean() > 3


@pytest.mark.parametrize("cv", [0.2, 0.5, 1.0, 2.0, 5.0, 15.0])
def test_weibull_shape_gives_its_variation(cv: float) -> None:
    k = weibull_shape(cv)
    assert math.gamma(1 + 2 / k) / math.gamma(1 + 1 / k) ** 2 - 1 == pytest.approx(cv**2, rel=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        Poisson(rate=0),
        Poisson(rate=math.inf),
        Gamma(rate=1, cv=0),
        Weibull(rate=1, cv=100),
        Burst(size=0, every_s=1),
        Burst(size=1, every_s=1, spread_s=2),
        Ramp(start=-1, end=1),
        Steps(rates=()),
        Periodic(rate=1, period_s=1, amplitude=2),
        Mmpp(rates=(1.0,), dwell_s=(1.0,)),
        Mmpp(rates=(1.0, 2.0), dwell_s=(1.0, 0.0)),
        Closed(slots=0),
    ],
)
def test_processes_that_cannot_be_are_refused(wrong: Arrival) -> None:
    with pytest.raises(ConfigError, match="arrival"):
        wrong.check("arrival")


def test_a_closed_loop_has_no_rate_to_set() -> None:
    with pytest.raises(ConfigError, match="closed loop"):
        Closed(slots=4).scaled(2.0)


def test_a_plan_that_is_too_big_is_refused_before_it_is_made() -> None:
    with pytest.raises(ConfigError, match="too big"):
        Poisson(rate=1e9).times(1e6, 1)
