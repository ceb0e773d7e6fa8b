"""Fleets that follow their load, with cold starts that come too late or in time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pure.sim.kit import COST, plan_of, replica_spec, stream

from paceline.contracts.slo import Outcome
from paceline.lab.workload import Plan
from paceline.router.scaling import ScalingPolicy
from paceline.sim.cluster import Cluster, Ended, Outage
from paceline.sim.elastic import Elastic, rows_of
from paceline.sim.fleet import make_cluster

POLICY = ScalingPolicy(max_replicas=6, target_open=3.0, period_s=1.0, down_after_s=4.0)


def burst() -> Plan:
    """A quiet stream, and after ten seconds five in which ten times as many come; then quiet again."""
    arrival = {"kind": "steps", "rates": [2.0, 2.0, 20.0, 2.0, 2.0, 2.0, 2.0, 2.0]}
    return plan_of(duration_s=40.0, drain_s=1e3, stream=[stream(arrival, 16, 20)])


def run(
    plan: Plan, cold_start_s: float, policy: ScalingPolicy = POLICY, **options: Any
) -> tuple[list[Ended], Cluster, Elastic]:
    ended: list[Ended] = []
    cluster = make_cluster(
        replica_spec(num_blocks=2048), COST, plan, on_end=ended.append, router="least-loaded",
        cold_start_s=cold_start_s, **options,
    )  # fmt: skip
    elastic = Elastic(cluster, policy)
    cluster.run()
    return sorted(ended, key=lambda e: e.planned.id), cluster, elastic


def slowest_ttft(ended: list[Ended]) -> float:
    return max(e.timeline.ttft_s for e in ended if e.timeline is not None)


def test_replicas_come_with_a_burst_and_go_when_it_is_over() -> None:
    ended, cluster, elastic = run(burst(), 0.5)
    assert all(e.outcome is Outcome.OK for e in ended)
    wanted = [look.desired for look in elastic.looks]
    assert wanted[5] == 1
    assert max(wanted) > 2
    assert wanted[-1] == 1
    assert elastic.looks[-1].num_ready == 1
    assert max(look.num_ready for look in elastic.looks) == max(wanted)
    alive = cluster.totals.replica_s
    assert 40.0 < alive < 40.0 * max(wanted) / 2  # paid for while they were there
    assert sum(replica is not None for replica in cluster.replicas) == 1


def test_a_retired_replica_ends_what_it_has_and_takes_nothing_new() -> None:
    ended, cluster, _ = run(burst(), 0.5)
    assert sum(cluster.num_requests) == len(ended) == len(burst().requests)
    started = [index for index, count in enumerate(cluster.num_requests) if count and index]
    assert started
    for index in started:
        assert max(e.sent_s for e in ended if e.replica == index) < 30.0


def test_the_later_replicas_come_the_longer_a_burst_waits() -> None:
    waits = [slowest_ttft(run(burst(), cold_s)[0]) for cold_s in (0.0, 2.0, 20.0)]
    assert waits[0] < waits[1] < waits[2]
    alone, _, _ = run(burst(), 0.0, ScalingPolicy(max_replicas=1, period_s=1.0))
    assert waits[1] < slowest_ttft(alone)


def test_a_failed_replica_is_replaced() -> None:
    plan = plan_of(duration_s=20.0, drain_s=1e3, stream=[stream({"kind": "constant", "rate": 4.0}, 16, 20)])
    ended, _, elastic = run(plan, 1.0, num_replicas=1, changes=[Outage(replica=0, at_s=5.0, back=False)])
    assert [look.num_ready for look in elastic.looks if 5.0 < look.time < 6.0] == []
    assert elastic.looks[-1].num_ready >= 1
    assert all(e.outcome is Outcome.OK for e in ended if e.sent_s > 8.0)


def test_the_same_run_has_the_same_history_and_the_lab_can_keep_it() -> None:
    one, other = run(burst(), 1.0)[2], run(burst(), 1.0)[2]
    assert one.looks == other.looks
    rows = rows_of(one.looks)
    assert [row["t_ns"] for row in rows[:2]] == [10**9, 2 * 10**9]
    assert rows[0]["common"]["replicas_ready"] == pytest.approx(1)
