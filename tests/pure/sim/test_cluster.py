from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.pure.sim.kit import COST, plan_of, replica_spec, run_fleet, stream

from paceline.contracts.slo import Outcome, Slo
from paceline.engine.slack import Slack
from paceline.errors import ConfigError
from paceline.lab.workload import primers
from paceline.router import POLICIES
from paceline.sim.client import REFUSAL_S
from paceline.sim.cluster import Ended, Joining, Outage
from paceline.sim.fleet import make_cluster
from paceline.sim.requests import by_class

LENGTHS = {"kind": "lognormal", "p50": 20, "p99": 80, "max": 100}
ROOMY = replica_spec(num_blocks=2048)


def poisson(rate: float) -> dict[str, Any]:
    return {"kind": "poisson", "rate": rate}


def mean_ttft(ended: list[Ended]) -> float:
    return float(np.mean([e.timeline.ttft_s for e in ended if e.timeline is not None]))


def assert_same_ends(fast: list[Ended], slow: list[Ended]) -> None:
    for one, other in zip(fast, slow, strict=True):
        assert (one.planned.id, one.outcome, one.replica, one.reason) == (
            other.planned.id,
            other.outcome,
            other.replica,
            other.reason,
        )
        assert one.end_s == pytest.approx(other.end_s, abs=1e-9)
        if one.timeline is not None:
            assert other.timeline is not None
            times = [t for t, _ in other.timeline.chunks]
            assert [t for t, _ in one.timeline.chunks] == pytest.approx(times, abs=1e-9)


@pytest.mark.parametrize("router", POLICIES)
def test_runs_and_single_steps_agree_in_every_fleet(router: str) -> None:
    more: dict[str, Any] = {
        "prefix": {"groups": 3, "tokens": 16, "zipf": 1.0},
        "faults": {"cancel_share": 0.2, "disconnect_share": 0.1, "timeout_share": 0.1, "timeout_s": 0.4},
    }
    plan = plan_of(num_requests=60, drain_s=60.0, stream=[stream(poisson(25.0), LENGTHS, LENGTHS, **more)])
    changes = [Outage(replica=1, at_s=0.7), Joining(at_s=0.2)]
    options: dict[str, Any] = {"num_replicas": 3, "router": router, "seed": 2, "changes": changes, "cold_start_s": 0.3}
    slow, by_step = run_fleet(plan, replica_spec(num_blocks=80), macro_steps=False, **options)
    fast, by_run = run_fleet(plan, replica_spec(num_blocks=80), macro_steps=True, **options)
    assert [e.planned.id for e in fast] == [r.id for r in plan.requests]
    assert_same_ends(fast, slow)
    assert by_run.totals.num_steps == by_step.totals.num_steps
    assert by_run.totals.num_events < by_step.totals.num_events
    assert by_run.num_requests == by_step.num_requests


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("rate", [6.0, 15.0])
def test_runs_and_single_steps_agree_under_targets_that_not_all_can_keep(rows: int, rate: float) -> None:
    chat = stream(poisson(rate), LENGTHS, LENGTHS, **{"class": "chat"})
    whole = stream(poisson(rate / 4), 60, 30, **{"class": "whole"})
    plan = plan_of(num_requests=60, drain_s=60.0, stream=[chat, whole], slo={"chat": {}, "whole": {}})
    slos = {"chat": Slo(ttft_s=0.4, tpot_s=0.02), "whole": Slo(e2e_s=1.2)}
    spec = replica_spec(num_blocks=512, max_num_seqs=rows, policy="priority", scheduling_mode="auto")
    slow, by_step = run_fleet(plan, spec, macro_steps=False, terms=by_class(slos))
    fast, by_run = run_fleet(plan, spec, macro_steps=True, terms=by_class(slos))
    assert_same_ends(fast, slow)
    assert by_run.totals.num_events < by_step.totals.num_events


@pytest.mark.parametrize("rate", [4.0, 10.0])
@pytest.mark.parametrize("tpot_s", [0.02, 0.06])
def test_a_step_that_surely_suits_all_rows_is_taken_without_looking_at_each(
    monkeypatch: pytest.MonkeyPatch, rate: float, tpot_s: float
) -> None:
    """The short cut of `Slack.budget` changes nothing, whether steps are near their limits or far from them."""
    plan = plan_of(num_requests=60, drain_s=60.0, stream=[stream(poisson(rate), LENGTHS, LENGTHS)])
    terms = by_class({"default": Slo(ttft_s=0.4, tpot_s=tpot_s)})
    spec = replica_spec(num_blocks=512, policy="priority", scheduling_mode="auto")
    short, _ = run_fleet(plan, spec, terms=terms)
    looks = []
    monkeypatch.setattr(Slack, "_surely_s", lambda *_: looks.append(1) or 0.0)
    whole, _ = run_fleet(plan, spec, terms=terms)
    assert looks
    assert_same_ends(short, whole)


@pytest.mark.parametrize("macro_steps", [True, False])
def test_a_request_that_is_refused_during_a_run_of_steps_does_not_stop_its_replica(macro_steps: bool) -> None:
    may_leave = {"timeout_share": 1.0, "timeout_s": 9.0}  # for such a request the run is settled before it is looked at
    fits = stream({"kind": "constant", "rate": 1.0}, 16, 200, faults=may_leave)
    too_long = stream({"kind": "constant", "rate": 0.9}, 400, 8, faults=may_leave)
    plan = plan_of(duration_s=3.0, drain_s=60.0, stream=[fits, too_long])
    ended, _ = run_fleet(plan, replica_spec(num_blocks=90), macro_steps=macro_steps)
    assert Counter(e.outcome for e in ended) == {Outcome.OK: 3, Outcome.HTTP_ERROR: 2}


def test_round_robin_shares_requests_evenly_and_load_shares_waiting() -> None:
    plan = plan_of(num_requests=160, drain_s=1e3, stream=[stream(poisson(45.0), LENGTHS, LENGTHS)])
    turns, cluster = run_fleet(plan, ROOMY, num_replicas=4)
    assert cluster.num_requests == [40] * 4
    least, _ = run_fleet(plan, ROOMY, num_replicas=4, router="least-loaded")
    assert mean_ttft(least) < mean_ttft(turns)


def test_a_shared_prefix_is_found_where_the_router_sends_it_again() -> None:
    prefix = {"groups": 12, "tokens": 64}
    plan = plan_of(num_requests=80, drain_s=1e3, stream=[stream(poisson(8.0), 8, 4, prefix=prefix)])

    def cached(router: str) -> int:
        ended, _ = run_fleet(plan, ROOMY, num_replicas=4, router=router)
        return sum(e.usage.cached_tokens for e in ended if e.usage is not None)

    assert cached("prefix-affinity") > 1.2 * cached("round-robin")


@pytest.mark.parametrize("router", ["prefix-affinity", "predicted-seconds"])
def test_what_was_asked_before_the_run_is_found_by_everybody(router: str) -> None:
    prefix = {"groups": 6, "tokens": 64}
    plan = plan_of(num_requests=40, drain_s=1e3, stream=[stream(poisson(0.5), 8, 4, prefix=prefix)])
    cached = {}
    for name, before in (("cold", []), ("warm", primers(plan))):
        ended: list[Ended] = []
        cluster = make_cluster(ROOMY, COST, plan, on_end=ended.append, num_replicas=3, router=router)
        cluster.prime(before)
        cluster.run()
        cached[name] = [e.usage.cached_tokens for e in ended if e.usage is not None]
        for replica in filter(None, cluster.replicas):
            replica.kv.check()
    assert 0 in cached["cold"]
    assert min(cached["warm"]) == 64
    assert len(cached["warm"]) == 40  # what was asked before is no request of the run


@pytest.mark.parametrize(
    ("router", "num_primed"),
    [("round-robin", [2, 2, 2, 2]), ("least-loaded", [4, 4, 0, 0])],  # two are asked at once: the third finds one free
)
def test_what_is_asked_before_the_run_is_under_way_two_at_once(router: str, num_primed: list[int]) -> None:
    prefix = {"groups": 8, "tokens": 64}
    plan = plan_of(num_requests=80, drain_s=1e3, stream=[stream(poisson(2.0), 8, 4, prefix=prefix)])
    before = primers(plan)
    assert len(before) == 8
    cluster = make_cluster(ROOMY, COST, plan, on_end=lambda _: None, num_replicas=4, router=router)
    cluster.prime(before)
    found = [replica.kv.stats().cached for replica in filter(None, cluster.replicas)]
    each = sum(found) // 8
    assert [blocks // each for blocks in found] == num_primed
    assert cluster.num_open == 0
    cluster.run()  # nothing of it is under way any more


def test_following_the_longest_prefix_alone_draws_all_to_one_replica() -> None:
    """All prompts begin alike, so whoever had the first has the longest match of all."""
    prefix = {"groups": 1, "tokens": 32}
    plan = plan_of(num_requests=60, drain_s=1e3, stream=[stream(poisson(2.0), 8, 4, prefix=prefix)])
    _, drawn = run_fleet(plan, ROOMY, num_replicas=4, router="longest-prefix")
    assert max(drawn.num_requests) == 60
    plan = plan_of(num_requests=60, drain_s=1e3, stream=[stream(poisson(60.0), 8, 40, prefix=prefix)])
    _, priced = run_fleet(plan, ROOMY, num_replicas=4, router="predicted-seconds")
    assert max(priced.num_requests) < 30


def test_a_later_turn_comes_after_the_answer_and_hits_what_was_said() -> None:
    turns = {"max": 3, "think_s": 0.5, "think": "fixed"}
    plan = plan_of(num_requests=30, duration_s=60.0, stream=[stream(poisson(2.0), 16, 12, turns=turns)])
    ended, _ = run_fleet(plan, ROOMY)
    by_session: dict[int | None, list[Ended]] = {}
    for e in ended:
        by_session.setdefault(e.planned.session, []).append(e)
    assert len(by_session) == 10
    for session in by_session.values():
        for before, after in itertools.pairwise(session):
            assert after.plan_s == pytest.approx(before.end_s + 0.5)
            assert before.usage is not None
            assert after.usage is not None
            assert after.usage.prompt_tokens == before.usage.prompt_tokens + 12 + 16
            assert after.usage.cached_tokens >= before.usage.prompt_tokens + 12 - 4  # but for the last, unfull block


def test_a_closed_loop_keeps_its_slots_and_no_more() -> None:
    loop = {"kind": "closed", "slots": 3, "requests": 20}
    ended, _ = run_fleet(plan_of(num_requests=20, stream=[stream(loop, LENGTHS, LENGTHS)]), ROOMY)
    moments = sorted([(e.sent_s, 1) for e in ended] + [(e.end_s, -1) for e in ended])
    in_flight = np.cumsum([change for _, change in moments])
    assert len(ended) == 20
    assert max(in_flight) == 3
    assert in_flight[-1] == 0


def test_what_comes_at_one_moment_is_in_the_same_step() -> None:
    loop = {"kind": "closed", "slots": 3, "requests": 3}
    ended, cluster = run_fleet(plan_of(num_requests=3, stream=[stream(loop, 8, 5)]), ROOMY)
    assert len({e.timeline.ttft_s for e in ended if e.timeline is not None}) == 1
    assert cluster.totals.num_steps == 5


def test_a_refusal_takes_a_slot_of_a_closed_loop_some_time() -> None:
    loop = {"kind": "closed", "slots": 6, "requests": 40}
    plan = plan_of(num_requests=40, drain_s=10.0, stream=[stream(loop, 8, 4)])
    ended, _ = run_fleet(plan, replica_spec(max_num_seqs=1, max_waiting_requests=1))
    refused = [e for e in ended if e.outcome is Outcome.REJECTED]
    assert len(refused) > 6
    assert sum(e.sent_s == 0.0 for e in ended) == 6
    assert REFUSAL_S in {e.sent_s for e in ended}


def test_clients_end_as_the_plan_says() -> None:
    faults = {"cancel_share": 0.25, "disconnect_share": 0.25, "timeout_share": 0.25, "timeout_s": 0.3}
    plan = plan_of(num_requests=40, drain_s=1e3, stream=[stream(poisson(5.0), 8, 60, faults=faults)])
    ended, cluster = run_fleet(plan, ROOMY)
    outcomes = Counter(e.outcome for e in ended)
    assert outcomes[Outcome.CLIENT_CANCEL] == sum(r.faults.cancel_after_tokens is not None for r in plan.requests) > 0
    assert outcomes[Outcome.TIMEOUT] == sum(r.faults.timeout_s is not None for r in plan.requests) > 0
    for e in ended:
        assert e.timeline is not None
        if e.outcome is Outcome.CLIENT_CANCEL:
            assert e.timeline.num_tokens == e.planned.faults.cancel_after_tokens
        if e.outcome is Outcome.TIMEOUT:
            assert e.end_s == pytest.approx(e.sent_s + 0.3)
    replica = cluster.replicas[0]
    assert replica is not None
    assert replica.kv.stats().held == 0


def test_a_failed_replica_loses_its_requests_takes_none_and_comes_back_cold() -> None:
    plan = plan_of(num_requests=200, drain_s=1e3, stream=[stream(poisson(20.0), 16, 20)])
    change = Outage(replica=0, at_s=2.0, down_s=1.0)
    ended, cluster = run_fleet(plan, ROOMY, num_replicas=2, changes=[change], cold_start_s=2.0)
    lost = [e for e in ended if e.outcome is Outcome.STREAM_ERROR]
    assert lost
    assert all(e.replica == 0 and e.sent_s <= 2.0 and e.end_s == 2.0 for e in lost)
    assert all(e.replica == 1 for e in ended if 2.0 < e.sent_s < 5.0)
    assert any(e.replica == 0 for e in ended if e.sent_s > 5.0)
    assert len(lost) + sum(e.outcome is Outcome.OK for e in ended) == 200
    assert cluster.replicas[0] is not None


def test_without_a_replica_requests_are_refused_at_once() -> None:
    plan = plan_of(num_requests=40, drain_s=1e3, stream=[stream(poisson(20.0), 16, 2)])
    ended, _ = run_fleet(plan, ROOMY, changes=[Outage(replica=0, at_s=1.0, back=False)])
    refused = [e for e in ended if e.sent_s > 1.0]
    assert refused
    assert {(e.outcome, e.http_status, e.replica) for e in refused} == {(Outcome.HTTP_ERROR, 503, -1)}


def test_a_replica_that_joins_helps_once_its_cold_start_is_over() -> None:
    plan = plan_of(num_requests=150, drain_s=1e3, stream=[stream(poisson(20.0), 16, 20)])
    ended, cluster = run_fleet(plan, ROOMY, router="least-loaded", changes=[Joining(at_s=1.0)], cold_start_s=2.0)
    assert min(e.sent_s for e in ended if e.replica == 1) >= 3.0
    assert cluster.num_requests[1] > 20
    alone, _ = run_fleet(plan, ROOMY)
    assert mean_ttft(ended) < mean_ttft(alone)


def test_a_full_queue_and_an_impossible_prompt_are_the_engines_own_refusals() -> None:
    spec = replica_spec(num_blocks=64, max_num_seqs=1, max_waiting_requests=2, max_model_len=64)
    plan = plan_of(num_requests=30, drain_s=1e3, stream=[stream(poisson(50.0), 16, 20)])
    ended, _ = run_fleet(plan, spec)
    assert {(e.outcome, e.http_status) for e in ended} == {(Outcome.OK, 200), (Outcome.REJECTED, 429)}
    too_long = msgspec.structs.replace(plan.requests[0], num_input_tokens=100)
    ended, _ = run_fleet(msgspec.structs.replace(plan, requests=(too_long,)), spec)
    assert [(e.outcome, e.http_status) for e in ended] == [(Outcome.HTTP_ERROR, 400)]


def test_what_is_open_when_the_drain_limit_has_passed_is_cut_off() -> None:
    plan = plan_of(duration_s=2.0, drain_s=1.0, stream=[stream(poisson(30.0), 16, 60)])
    ended, cluster = run_fleet(plan, ROOMY)
    cut = [e for e in ended if e.outcome is Outcome.TIMEOUT]
    assert cut
    assert all(e.end_s == 3.0 and "drain" in e.reason for e in cut)
    assert cluster.totals.virtual_s == 3.0
    assert len(ended) == len(plan.requests)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_replicas": 0}, "a fleet needs a replica"),
        ({"router": "nearest"}, "no router policy"),
        ({"changes": [Outage(replica=3, at_s=1.0)]}, "no such replica"),
        ({"changes": [Joining(at_s=-1.0)]}, "no time"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], words: str) -> None:
    plan = plan_of(num_requests=1, stream=[stream(poisson(1.0))])
    with pytest.raises(ConfigError, match=words):
        run_fleet(plan, **options)
