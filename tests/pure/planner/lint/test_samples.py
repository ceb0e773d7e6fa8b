"""PL204 too few requests, PL212 no steady state: workload and run."""

import math

import msgspec
import pytest
from tests.fakes.lab.sample_records import SampleServer
from tests.pure.lab.metrics.logs import steady_log
from tests.pure.planner.lint.worlds import config, found, run, served, with_engine, workload

from paceline.contracts.lint import Severity
from paceline.contracts.slo import min_samples
from paceline.contracts.workload import SloClass
from paceline.planner.lint import FleetFacts, lint

P99 = SloClass(ttft_s=1.0, share=0.99)


@pytest.mark.parametrize(("share", "need"), [(0.95, 59), (0.99, 299), (0.999, 2995)])
def test_the_least_number_is_that_of_the_one_sided_bound(share, need):
    assert min_samples(share) == need == math.ceil(math.log(0.05) / math.log(share))


def test_a_window_too_short_for_its_percentile_and_the_longer_one():
    facts = config(workload(duration_s=20.0), (P99,))
    (finding,) = found(facts, "PL204")
    evidence = {e.name: e.value for e in finding.evidence}
    assert evidence["needed for p99"] == 299
    assert evidence["requests in the window"] == len(facts.load.requests)
    assert found(config(workload(**finding.fix.workload), (P99,)), "PL204") == []
    assert "PL204" in lint(config(workload())).skipped


def test_warm_up_does_not_count():
    assert found(config(workload(duration_s=80.0, warmup_s=5.0), (P99,)), "PL204") == []
    (finding,) = found(config(workload(duration_s=10.0, warmup_s=75.0), (P99,)), "PL204")
    assert finding.evidence[0].value < 80


def test_a_run_is_counted_by_its_records():
    (finding,) = found(run(steady_log(58), SloClass(ttft_s=1.0)), "PL204")
    assert finding.evidence[0].value == 58
    assert found(run(steady_log(59), SloClass(ttft_s=1.0)), "PL204") == []


def test_a_rate_beyond_saturation_is_predicted_and_the_fix_is_below():
    """Full rows: 42 ms for 16 tokens; a request of 100 in and 40 out takes 50 + 105 ms, so 6.5 requests/s saturate."""
    load = workload(arrival={"kind": "constant", "rate": 8.0}, input=100, output=40)
    (finding,) = found(config(load), "PL212")
    assert {e.name: e.value for e in finding.evidence}["saturated at"] == pytest.approx(1 / 0.155, rel=0.01)
    assert finding.severity is Severity.ERROR  # 7.2 at the most
    two = msgspec.structs.replace(config(load), fleet=FleetFacts(num_replicas=2))
    assert found(two, "PL212") == []
    rate = finding.fix.workload["rate"]
    below = workload(arrival={"kind": "constant", "rate": rate}, input=100, output=40)
    assert found(config(below), "PL212") == []


def test_what_the_prefix_cache_gives_back_is_not_computed():
    prefix = {"groups": 1, "tokens": 96}
    load = workload(arrival={"kind": "constant", "rate": 8.0}, input=4, output=40, prefix=prefix)
    cached = config(load)
    assert found(cached, "PL212") == []
    assert len(found(with_engine(cached, prefix_caching=False), "PL212")) == 1


def test_a_run_that_drowns_is_found_and_the_rate_of_the_fix_is_steady():
    server = SampleServer(rows=8, prefix_cache=False)
    (finding,) = found(served(server, P99, rate_rps=30.0, num_requests=600), "PL212")
    assert "saturated" in finding.sentence
    assert finding.severity is Severity.ERROR
    calm = served(server, P99, rate_rps=0.5 * finding.fix.workload["rate"], num_requests=200)
    assert found(calm, "PL212") == []


def test_too_few_requests_are_no_steady_state_either():
    (finding,) = found(run(steady_log(10), P99, end=1_000.0), "PL212")
    assert finding.severity is Severity.WARNING
    assert finding.fix.workload["duration_s"] >= 2
