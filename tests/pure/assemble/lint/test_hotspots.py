"""PL105: a popular prefix draws all to one replica, predicted and simulated; predicted seconds divide it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from tests.pure.assemble.lint.kit import Case, numbers
from tests.pure.planner.lint.worlds import config

from paceline.assemble.lint import serving_of
from paceline.contracts.lint import Finding
from paceline.planner.lint import Facts, FleetFacts, LoadFacts, Timed
from paceline.planner.lint.hotspot import RULE, _filled

SETTINGS = {"model": "llama-3.1-8b", "max_model_len": 4096, "max_num_seqs": 32}


def case(folder: Path, router: str, rate: float = 18.0) -> Case:
    """One prefix begins half of all requests; the first of them find an idle fleet, so it lies on one replica."""
    load = {
        "duration_s": 12.0, "drain_s": 120.0, "slo": {"default": {"ttft_s": 2.0}},
        "stream": [
            {
                "arrival": {"kind": "steps", "rates": [1.0, rate, rate, rate]}, "input": 64, "output": 48,
                "prefix": {"groups": 8, "tokens": 1024, "zipf": 1.5},
            }
        ],
    }  # fmt: skip
    return Case(folder, SETTINGS, load, "l4", serving_of(num_replicas=4, router=router))


def test_a_popular_prefix_fills_one_replica_and_predicted_seconds_divide_it(tmp_path: Path) -> None:
    hot = case(tmp_path, "longest-prefix")
    predicted, measured = hot.predicted("PL105"), hot.measured("PL105")
    for finding in (predicted, measured.finding):
        assert finding is not None
        assert finding.fix.fleet == {"router": "predicted-seconds"}
    assert predicted is not None
    assert measured.finding is not None
    assert numbers(predicted)["busiest replica over the mean"] > 1.3
    assert numbers(measured.finding)["busiest replica over the mean, open requests"] > 1.3
    even = case(tmp_path, "predicted-seconds")
    assert even.predicted("PL105") is None
    after = even.measured("PL105", name="even")
    assert after.finding is None
    assert after.p95("ttft") < 0.5 * measured.p95("ttft")


def test_where_there_is_room_affinity_costs_nothing(tmp_path: Path) -> None:
    calm = case(tmp_path, "longest-prefix", rate=3.0)
    assert calm.predicted("PL105") is None
    assert calm.measured("PL105").finding is None


def test_short_prefixes_do_not_bind_a_router_that_asks_for_a_share(tmp_path: Path) -> None:
    bound = case(tmp_path, "prefix-affinity")
    assert bound.predicted("PL105") is not None
    stream = {**bound.workload["stream"][0], "input": 1000, "prefix": {"groups": 8, "tokens": 64, "zipf": 1.5}}
    assert replace(bound, workload={**bound.workload, "stream": [stream]}).predicted("PL105") is None


def timed(replica: int, at_s: float, ttft_s: float, cached: int, queue_s: float = 0.0) -> Timed:
    return Timed(
        id=0, slo_class="c", in_window=True, ok=True, send_s=at_s, first_s=at_s + ttft_s, last_s=at_s + ttft_s + 1.0,
        end_s=at_s + ttft_s + 1.0, num_prompt=1000, num_cached=cached, replica=replica, prefill_s=0.1, queue_s=queue_s,
    )  # fmt: skip


def measured(requests: list[Timed]) -> list[Finding]:
    facts = Facts(source="run", name="r", fleet=FleetFacts(num_replicas=2, router="longest-prefix"))
    return list(RULE.check(msgspec.structs.replace(facts, run=_run(requests))))


def test_a_hot_replica_is_a_mistake_only_if_it_waits_longer_than_its_hits_saved() -> None:
    """1,000 tokens take 0.1 s where nothing is cached; the hot replica has 900 of them cached, worth 0.09 s."""

    def found(ttft_s: float, cached: int = 900) -> int:
        requests = [timed(0, i * 0.1, ttft_s, cached) for i in range(40)] + [timed(1, i, 0.1, 0) for i in range(4)]
        return len(measured(requests))

    assert found(0.3) == 1
    assert found(0.15) == 0
    assert found(0.3, cached=0) == 0  # hot, but not for its prefixes


def test_where_one_replica_answered_everything_there_are_no_others_to_speak_of() -> None:
    """900 of 1,000 tokens are cached, and 100 take 0.1 s: hits are worth 0.9 s."""
    (finding,) = measured([timed(0, i * 0.1, 1.4, 900, queue_s=1.2) for i in range(40)])
    assert "Replica 0 of 2 answered everything" in finding.sentence
    assert "waited 1.2" in finding.sentence
    assert "those of the others" not in finding.sentence
    assert "prefill of a token, there" in numbers(finding)
    assert numbers(finding)["requests of the others that got a first token"] == 0
    assert measured([timed(0, i * 0.1, 1.0, 900, queue_s=0.8) for i in range(40)]) == []


def test_a_load_that_sends_nothing_has_no_hot_spot() -> None:
    facts = config(
        LoadFacts(name="l", requests=(), window_s=5.0),
        fleet=FleetFacts(num_replicas=2, router="longest-prefix"),
    )
    assert list(RULE.check(facts)) == []


def _run(requests: list[Timed]):  # type: ignore[no-untyped-def]
    from tests.pure.lab.metrics.logs import steady_log
    from tests.pure.planner.lint.worlds import run

    facts = run(steady_log(4)).run
    assert facts is not None
    return msgspec.structs.replace(facts, requests=tuple(requests))


def test_what_is_bound_nowhere_goes_to_those_with_least() -> None:
    assert _filled([5.0, 1.0, 0.0], 3.0) == [2.0, 2.0, 5.0]
    assert _filled([1.0, 1.0], 4.0) == [3.0, 3.0]
    assert _filled([2.0, 1.0], 0.0) == [1.0, 2.0]
