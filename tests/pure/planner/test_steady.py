"""A replica in a steady state, against what must be true of any queue."""

import numpy as np
import pytest
from tests.pure.planner.kit import traffic

from paceline.contracts.ports import StepShape
from paceline.contracts.workload import SloClass
from paceline.cost.estimate import exact
from paceline.planner import Traffic
from paceline.planner.steady import Replica
from paceline.planner.step import LayoutSteps

LOOSE = SloClass(ttft_s=100.0, tpot_s=100.0)


class Linear:
    """10 ms, 0.1 ms a position, 0.01 ms a thousand tokens of context."""

    def __init__(self, fixed=10.0, per_token=0.1, per_context=1e-5):
        self.prices = (fixed, per_token, per_context)

    def step_ms(self, shape: StepShape) -> float:
        fixed, per_token, per_context = self.prices
        return fixed + per_token * shape.num_tokens + per_context * shape.context_tokens

    def estimate(self, shape: StepShape):
        return exact(self.step_ms(shape), "made up")


def replica(slo=LOOSE, load=None, *, seats=64, chunk=256, times=None):
    return Replica(LayoutSteps(times or Linear()), load or traffic(), slo, seats=seats, chunk=chunk)


def test_littles_law_and_the_mean_step():
    found = replica().at_rows(12.0)
    assert found.rows == pytest.approx(found.rate_rps * traffic().mean_output * found.step_ms / 1e3)
    # 13 rows are met; every step has its share of prompts' tokens
    tokens = 13 + found.prefill_share * 256
    assert found.step_ms == pytest.approx(10 + 0.1 * tokens, rel=0.02)


def test_a_prompt_bound_replica_ends_where_every_step_has_a_chunk():
    load = Traffic(input_tokens=np.array([2000.0]), output_tokens=np.array([10.0]))
    most = replica(load=load, seats=4096).capacity()
    assert most.prefill_share == pytest.approx(0.98, abs=0.05)
    chunk_ms = 10 + 0.1 * (256 + most.rows)
    assert most.rate_rps == pytest.approx(1e3 * 0.98 * 256 / (2000 * chunk_ms), rel=0.1)


def test_the_wait_is_that_of_a_single_server_queue():
    """One prompt length, one output token behind: M/D/1, whose mean wait is rho S / 2 (1 - rho)."""
    load = Traffic(input_tokens=np.array([256.0]), output_tokens=np.array([4.0]))
    one = replica(load=load, times=Linear(per_context=0.0))
    found = one.at_rows(2.0)
    rho, service = found.prefill_share, 10 + 0.1 * (256 + 3)
    wait = one._wait_ms(rho, np.array([service]))
    assert wait == pytest.approx(rho * service / (2 * (1 - rho)))


def test_more_load_is_never_better_for_a_request():
    one = replica(SloClass(ttft_s=1.0, tpot_s=0.02))
    points = [one.at_rows(rows) for rows in (0.0, 1.0, 4.0, 16.0, 32.0)]
    for name in ("step_ms", "prefill_share", "ttft_p50_s", "ttft_p95_s", "rate_rps"):
        values = [getattr(p, name) for p in points]
        assert values == sorted(values), name
    met = [p.attainment for p in points]
    assert met == sorted(met, reverse=True)


def test_capacity_is_the_last_load_that_keeps_the_share():
    one = replica(SloClass(ttft_s=1.0, tpot_s=0.018, share=0.9))
    most = one.capacity()
    assert most.attainment == pytest.approx(0.9, abs=0.01)
    assert one.at_rows(most.rows * 1.05).attainment < 0.9


def test_faster_steps_carry_more():
    slo = SloClass(ttft_s=1.0, tpot_s=0.018)
    slow, fast = (replica(slo, times=Linear(fixed=f)).capacity().goodput_rps for f in (12.0, 8.0))
    assert fast > slow


def test_a_rate_is_found_again_and_too_much_is_none():
    one = replica()
    found = one.at_rate(2.0)
    assert found.rate_rps == pytest.approx(2.0, rel=1e-3)
    assert one.at_rate(1e4) is None


def test_a_small_load_is_found_among_thousands_of_seats():
    found = replica(seats=4000).at_rate(0.01)
    assert found.rate_rps == pytest.approx(0.01, rel=1e-3)
    load = Traffic(input_tokens=np.array([2560.0]), output_tokens=np.array([10.0]))
    alone = replica(load=load).at_rows(0.0)
    tight = SloClass(ttft_s=1.01 * alone.ttft_p95_s, tpot_s=1.0)
    few, many = (replica(tight, load, seats=seats).capacity() for seats in (64, 4000))
    assert 0 < few.rows < 0.2
    assert many.rows == pytest.approx(few.rows, rel=0.01)


def test_few_seats_are_what_limits():
    slo = SloClass(ttft_s=5.0, tpot_s=1.0)
    few, many = replica(slo, seats=4).capacity(), replica(slo, seats=64).capacity()
    assert few.goodput_rps < many.goodput_rps
    assert few.seated < 1


def test_targets_that_an_empty_replica_misses_leave_no_capacity():
    assert replica(SloClass(tpot_s=0.009)).capacity() is None
    assert replica(SloClass(ttft_s=0.05)).capacity() is None


def test_cached_prompts_cost_less():
    slo = SloClass(ttft_s=1.0, tpot_s=0.05)
    cold, warm = (replica(slo, traffic(cached_share=share)).capacity() for share in (0.0, 0.7))
    assert warm.goodput_rps > 1.2 * cold.goodput_rps


def test_bursts_cost_goodput():
    slo = SloClass(ttft_s=1.0, tpot_s=0.05)
    steady, bursty = (replica(slo, traffic(arrival_cv=cv)).capacity() for cv in (1.0, 4.0))
    assert bursty.goodput_rps < steady.goodput_rps


def test_every_step_longer_is_every_time_longer():
    steps = LayoutSteps(Linear())
    assert steps.scaled(2.0).decode_ms(8, 100) == 2 * steps.decode_ms(8, 100)
    assert steps.scaled(2.0).mixed_ms(8, 100, 64, 32) == 2 * steps.mixed_ms(8, 100, 64, 32)
    assert steps.scaled(2.0).estimate(8, 100).value == pytest.approx(2 * steps.decode_ms(8, 100))
