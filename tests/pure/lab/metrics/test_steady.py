"""Is the window one regime? Simulated servers whose regime is known."""

from __future__ import annotations

import numpy as np
import pytest
from tests.pure.lab.metrics.logs import chunk, info, record

from paceline.contracts.artefact import RequestRecord, Window
from paceline.contracts.metrics import Steady
from paceline.contracts.workload import SloClass
from paceline.lab.metrics import compute, series_of
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.judge import times_of
from paceline.lab.metrics.steady import steadiness


def queue(service_ms: list[float], every_ms: float, seed: int) -> list[RequestRecord]:
    """One server, first come first served, Poisson arrivals: TTFT is the end of the service."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(every_ms, len(service_ms)))
    free, log = 0.0, []
    for i, (plan, service) in enumerate(zip(at, service_ms, strict=True)):
        free = max(free, plan) + service * rng.uniform(0.8, 1.2)
        log.append(record(i, [chunk(free), chunk(free + 10)], plan=float(plan)))
    return log


def regime(log: list[RequestRecord]) -> Steady:
    columns = columns_of(log)
    return steadiness(columns, times_of(columns), Window(start_ns=0, end_ns=log[-1].t_plan_ns + 1))


def test_a_server_that_keeps_up_is_steady_and_one_that_does_not_is_saturated() -> None:
    answers = [regime(queue([50.0] * 300, 100.0, seed)).answer for seed in range(20)]
    assert answers.count("steady") >= 18  # half loaded; a rare false alarm is in the nature of a test
    drowned = [regime(queue([150.0] * 300, 100.0, seed)) for seed in range(10)]
    assert [s.answer for s in drowned] == ["saturated"] * 10
    assert all(s.in_flight_slope is not None and s.in_flight_slope > 0 for s in drowned)


def test_warming_up() -> None:
    falling = [50.0 + 100.0 * np.exp(-i / 60) for i in range(300)]
    found = regime(queue(falling, 400.0, 1))
    assert found.answer == "warming"
    assert found.warmup_s > 0


def test_a_jump() -> None:
    assert regime(queue([40.0] * 150 + [80.0] * 150, 400.0, 2)).answer == "shifted"


def test_too_short() -> None:
    assert regime(queue([40.0] * 19, 400.0, 2)).answer == "too short"


def test_unsteady_windows_are_cautioned() -> None:
    log = queue([150.0] * 300, 100.0, 0)
    metrics = compute(info(SloClass(ttft_s=1.0), end=log[-1].t_plan_ns / 1e6 + 1), log)
    assert "unsteady" in {c.code for c in metrics.cautions}


def test_series_of_a_queue_adds_up() -> None:
    log = queue([50.0] * 300, 100.0, 3)
    end = log[-1].t_plan_ns / 1e6 + 1
    found = series_of(info(SloClass(ttft_s=10.0), end=end), log, bin_s=0.5)
    assert sum(found.planned_rps) * 0.5 == pytest.approx(300)
    assert sum(found.ended_ok_rps) * 0.5 == pytest.approx(300)
    assert sum(found.output_tokens_per_s) * 0.5 == pytest.approx(600)
    assert sum(found.good_rps) * 0.5 == pytest.approx(300)
    assert max(found.in_flight) >= 1
    assert all(w <= f for w, f in zip(found.waiting, found.in_flight, strict=True))
    assert len(found.ttft) == 300
    assert {len(getattr(found, name)) for name in ("t_s", "in_flight", "ttft_p50_s", "lag_max_s", "prefix_hit")} == {
        len(found.t_s)
    }
    assert len(series_of(info(end=end), log, max_samples=50).ttft) == 50


def test_series_of_nothing() -> None:
    assert series_of(info(), []).planned_rps.count(0.0) == len(series_of(info(), []).t_s)
