"""PL202 one length, PL203 closed loop, PL210 one at a time, PL211 calmer than the service: workload and run."""

import msgspec
import numpy as np
import pytest
from tests.pure.lab.metrics.logs import chunk, record, steady_log
from tests.pure.planner.lint.worlds import LOGNORMAL, config, found, run, workload

from paceline.contracts.workload import SloClass
from paceline.planner.lint import TraceFacts
from paceline.planner.lint.load import gap_cv, most_in_flight

SLO = (SloClass(ttft_s=1.0, tpot_s=0.1),)
CLOSED = {"kind": "closed", "slots": 4, "requests": 40}


def test_one_length_for_all_and_the_distribution_that_fixes_it():
    facts = config(workload(input=64, output=16), SLO)
    (finding,) = found(facts, "PL202")
    assert {e.name: e.value for e in finding.evidence}["variance of lengths"] == 0
    assert found(config(workload(**finding.fix.workload), SLO), "PL202") == []
    assert found(config(workload(input=LOGNORMAL, output=16), SLO), "PL202") == []


def test_a_run_shows_what_lengths_were_asked():
    alike = steady_log(30)
    for one in alike:
        one.num_input_asked = 64
    assert len(found(run(alike, *SLO), "PL202")) == 1
    for i, one in enumerate(alike):
        one.num_input_asked = 32 + i
    assert found(run(alike, *SLO), "PL202") == []
    assert found(run([record(i, [chunk(i * 100 + 50.0)], plan=i * 100.0) for i in range(5)], *SLO), "PL202") == []


def test_targets_asked_of_a_closed_loop():
    facts = config(workload(arrival=CLOSED, num_requests=40), SLO)
    (finding,) = found(facts, "PL203")
    assert found(config(workload(**finding.fix.workload), SLO), "PL203") == []
    assert found(msgspec.structs.replace(facts, slo=()), "PL203") == []


def test_a_closed_run_suggests_a_rate_below_the_one_it_reached():
    closed = run(steady_log(30), *SLO, closed_loop=True, end=3_000.0)
    (finding,) = found(closed, "PL203")
    assert finding.fix.workload["arrival"]["rate"] == pytest.approx(8.0)  # ten a second came of it
    assert found(run(steady_log(30), *SLO), "PL203") == []


def test_one_request_at_a_time_and_eight():
    alone = config(workload(arrival={**CLOSED, "slots": 1}, num_requests=40), SLO)
    (finding,) = found(alone, "PL210")
    more = workload(**finding.fix.workload, num_requests=40)
    assert found(config(more, SLO), "PL210") == []
    assert found(config(workload(), SLO), "PL210") == []


def test_a_run_that_never_had_two_in_flight():
    (finding,) = found(run(steady_log(30, every=200.0), *SLO), "PL210")  # 90 ms each
    assert finding.evidence[0].value == 1
    assert found(run(steady_log(30, every=60.0), *SLO), "PL210") == []


def test_a_poisson_load_for_a_bursty_service():
    trace = TraceFacts(name="code.csv", cv=5.0, num_requests=1000)
    facts = config(workload(duration_s=120.0), SLO, trace=trace)
    (finding,) = found(facts, "PL211")
    assert finding.fix.workload["arrival"]["cv"] == 5.0
    bursty = workload(duration_s=120.0, arrival={**finding.fix.workload["arrival"], "rate": 20.0}, seed=3)
    assert found(config(bursty, SLO, trace=trace), "PL211") == []
    assert found(msgspec.structs.replace(facts, trace=TraceFacts(name="t", cv=1.1, num_requests=9)), "PL211") == []


def test_a_run_is_compared_with_the_trace_by_its_planned_times():
    at = np.cumsum(np.random.default_rng(1).exponential(200.0, 100))
    log = [record(i, [chunk(float(t) + 50.0)], plan=float(t)) for i, t in enumerate(at)]
    trace = TraceFacts(name="code.csv", cv=5.0, num_requests=1000)
    facts = msgspec.structs.replace(run(log, *SLO), trace=trace)
    assert len(found(facts, "PL211")) == 1
    pairs = [record(i, [chunk(t + 50.0)], plan=t) for i, t in enumerate(sorted([*range(0, 50_000, 5000)] * 10))]
    assert found(msgspec.structs.replace(run(pairs, *SLO), trace=trace), "PL211") == []


def test_the_gaps_of_a_metronome_do_not_vary_and_those_of_pairs_do():
    assert gap_cv([0.0, 1.0, 2.0, 3.0]) == 0.0
    assert gap_cv([0.0, 0.0, 2.0, 2.0]) == pytest.approx(2**0.5)
    assert gap_cv([0.0, 1.0]) is None


def test_an_end_at_the_moment_of_a_beginning_is_no_overlap():
    assert most_in_flight([(0.0, 1.0), (1.0, 2.0), (None, None)]) == 1
    assert most_in_flight([(0.0, 1.5), (1.0, 2.0)]) == 2
    assert most_in_flight([]) is None
