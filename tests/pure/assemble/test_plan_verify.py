"""Planned candidates in the simulator: against the steady state where that is right, and where it is not."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.pure.planner.kit import lognormal, question, traffic

from paceline.assemble.plan_verify import FilledLoad, Trial, prices_of, replica_of, simulate, verifier
from paceline.contracts.ports import StepShape
from paceline.contracts.workload import SloClass
from paceline.cost.estimate import Estimate, exact
from paceline.planner import Candidate, Kept, Question, Traffic, make_plan
from paceline.planner.search import search
from paceline.sim.fleet import ReplicaSpec
from paceline.sim.outcome import Ended

LOOSE = SloClass(ttft_s=100.0, tpot_s=100.0)


class Flat:
    """Every step takes 10 ms."""

    def step_ms(self, shape: StepShape) -> float:
        return 10.0

    def estimate(self, shape: StepShape) -> Estimate:
        return exact(10.0, "made up")


def best(ask: Question) -> Candidate:
    found = search(ask).chosen
    assert found is not None
    return found


def l4(**changed: Any) -> Question:
    slo = SloClass(ttft_s=2.0, tpot_s=0.1)
    return question(device="l4", kept=Kept(weights="int8"), slo=slo, **changed)


def test_a_lone_row_is_as_predicted() -> None:
    ask = question(traffic=traffic(rate_rps=0.2))
    first = Trial(ask, best(ask)).run(0).first
    assert first.attainment == pytest.approx(1.0, abs=0.01)
    assert first.tpot_s == pytest.approx(first.expected.tpot_s, rel=0.03)
    assert first.ttft_p95_s == pytest.approx(first.expected.ttft_p95_s, rel=0.12)
    assert first.num_preemptions == 0


def test_under_load_the_steady_state_is_near_and_the_simulation_says_how_near() -> None:
    candidate = best(question())
    result = Trial(question(), candidate).run(0)
    first = result.first
    assert candidate.capacity is not None
    assert first.rate_rps == pytest.approx(0.95 * candidate.capacity.rate_rps, rel=1e-3)
    assert first.tpot_s == pytest.approx(first.expected.tpot_s, rel=0.15)
    assert result.met


def test_one_server_and_equal_prompts_wait_as_in_m_d_1() -> None:
    """One prompt fills a step, and its one output token ends it."""
    load = Traffic(input_tokens=np.array([256.0]), output_tokens=np.array([1.0]), rate_rps=60.0)
    ask = question(traffic=load, slo=LOOSE, times=Flat())
    chosen = msgspec.structs.replace(best(ask), chunk=256)
    many = FilledLoad(
        traffic=load, rows=0.0, rate_rps=60.0, prefill_share=0.6, empty_step=1.0, num_requests=3000
    ).requests(0)  # fmt: skip
    ended = simulate(replica_of(ask, chosen), prices_of(ask, chosen), many, ask.slo.slo)
    service, busy = 0.010, 0.6
    wait = fmean(e.timeline.ttft_s for e in ended if e.timeline is not None) - service
    assert wait == pytest.approx(busy * service / (2 * (1 - busy)), rel=0.1)


def test_the_rows_of_a_steady_state_run_when_the_looking_begins() -> None:
    ask = question()
    trial = Trial(ask, best(ask))
    expected, load = trial._load(0.95)
    planned = load.requests(3)
    ended = simulate(replica_of(ask, trial.candidate), prices_of(ask, trial.candidate), planned, ask.slo.slo)
    begins = planned.requests[load.num_filling].at_s
    assert begins is not None
    assert len(ended) == load.num_all

    def runs(each: Ended) -> bool:
        line = each.timeline
        return line is not None and line.first_token <= begins < each.end_s

    assert sum(map(runs, ended)) == pytest.approx(expected.rows, rel=0.25)


def test_requests_are_those_of_the_traffic() -> None:
    asked = traffic(input_tokens=lognormal(200, 900), cached_share=0.5)
    load = FilledLoad(traffic=asked, rows=8.0, rate_rps=4.0, prefill_share=0.2, empty_step=0.8, num_requests=320)
    plan = load.requests(0)
    looked_at = [r for r in plan.requests if load.looks_at(r)]
    assert len(looked_at) == 320
    assert fmean(r.num_input_tokens for r in looked_at) == pytest.approx(asked.mean_input)
    assert fmean(r.num_output_tokens for r in looked_at) == pytest.approx(asked.mean_output)
    assert fmean(r.num_prefix_tokens / r.num_input_tokens for r in looked_at) == pytest.approx(0.5, abs=0.01)
    times = [r.at_s for r in plan.requests if r.at_s is not None]
    assert times == sorted(times)
    before, last = times[load.num_filling - 1], times[load.num_filling + 319]
    assert (last - before) * 4.0 == pytest.approx(320)
    assert load.requests(0) == plan != load.requests(1)
    even = FilledLoad(
        traffic=traffic(arrival_cv=0.0), rows=8.0, rate_rps=4.0, prefill_share=0.2, empty_step=0.8, num_requests=20
    ).requests(0)  # fmt: skip
    gaps = np.diff([r.at_s for r in even.requests[-20:] if r.at_s is not None])
    assert gaps == pytest.approx(0.25)


def test_the_same_question_gives_the_same_verdict() -> None:
    ask = l4()
    one, same, other = (Trial(ask, best(ask), num_requests=60).run(seed) for seed in (0, 0, 1))
    assert one == same
    assert one.first != other.first


def test_prompts_found_in_the_cache_are_not_computed() -> None:
    ask = question(traffic=traffic(cached_share=0.5, rate_rps=2.0))
    trial = Trial(ask, best(ask))
    _, load = trial._load(1.0)
    replica = replica_of(ask, trial.candidate)
    ended = simulate(replica, prices_of(ask, trial.candidate), load.requests(0), ask.slo.slo)
    used = [e.usage for e in ended if load.looks_at(e.planned) and e.usage is not None]
    share = sum(u.cached_tokens for u in used) / sum(u.prompt_tokens for u in used)
    assert share == pytest.approx(0.5, abs=0.02)
    assert not replica_of(question(), best(question())).prefix_caching


def test_a_load_that_misses_is_lowered_until_it_is_met() -> None:
    """Bursts wait longer than the steady state knows."""
    ask = l4(traffic=traffic(arrival_cv=2.0))
    result = Trial(ask, best(ask)).run(0)
    assert [round(x.rate_rps / result.first.rate_rps, 3) for x in result.loads] == [1.0, 0.842]
    assert not result.loads[0].attainment >= 0.93
    assert result.met
    assert {load.mode for load in result.loads} == {"auto"}


def test_scheduling_by_targets_is_left_out_where_fixed_knobs_keep_clearly_more_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spoilt(replica: ReplicaSpec, *args: Any) -> list[Ended]:
        """`auto` as if it held its rows to a few."""
        settings = replica.settings
        if settings.scheduling_mode == "auto":
            settings = msgspec.structs.replace(settings, max_num_seqs=2)
        return simulate(msgspec.structs.replace(replica, settings=settings), *args)

    ask = l4()
    monkeypatch.setattr("paceline.assemble.plan_verify.simulate", spoilt)
    plan = make_plan(ask, verify=verifier(), num_verified=1)
    assert plan.chosen is not None
    assert plan.chosen.simulated is not None
    assert plan.chosen.simulated.carried.mode == "fixed"
    assert plan.chosen.simulated.met
    monkeypatch.undo()
    assert Trial(ask, plan.chosen).run(0).carried.mode == "auto"


def test_a_rate_that_is_missed_gets_one_replica_more() -> None:
    bursts = traffic(arrival_cv=2.0)
    carried = best(l4(traffic=bursts)).capacity_rps
    ask = l4(devices=4, traffic=replace(bursts, rate_rps=0.999 * carried / 0.95))
    plain, verified = make_plan(ask), make_plan(ask, verify=verifier(), num_verified=1)
    assert plain.chosen is not None
    assert verified.chosen is not None
    assert verified.chosen.layout.replicas == plain.chosen.layout.replicas + 1
    assert verified.chosen.simulated is not None
    assert verified.chosen.simulated.met
    assert any("was predicted to be better" in note for note in verified.notes)
    missed = next(c for c in verified.search.candidates if c.layout == plain.chosen.layout)
    assert missed.simulated is not None
    assert not missed.simulated.met


def test_a_look_stays_short_unless_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = question(devices=2)
    candidates = [c for c in search(ask).candidates if c.fits][:2]
    monkeypatch.setattr("paceline.assemble.plan_verify.MOST_TOKENS", 1000)
    assert [c.simulated is not None for c in verifier(num_requests=20)(ask, candidates)] == [True, False]
    assert [c.simulated is not None for c in verifier(num_requests=20, bounded=False)(ask, candidates)] == [True, True]
    monkeypatch.setattr("paceline.assemble.plan_verify.MOST_ROWS", 10)
    assert [c.simulated is not None for c in verifier(num_requests=20)(ask, candidates)] == [False, False]
