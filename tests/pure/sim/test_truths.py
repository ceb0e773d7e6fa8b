"""What queueing theory says of cases that can be worked out, and laws that hold for every run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.pure.sim.kit import COST, plan_of, replica_spec, run_fleet, stream

from paceline.contracts.artefact import RequestRecord, RunInfo, TargetInfo
from paceline.contracts.slo import Outcome
from paceline.cost import LinearStepCost, prefill_shape
from paceline.lab.artefact import write_run
from paceline.lab.metrics import compute
from paceline.lab.workload import load_spec, make_plan
from paceline.sim.cluster import Ended
from paceline.sim.fleet import make_cluster
from paceline.sim.record import info_of, record_of

FIXED_MS = 10.0
FLAT = LinearStepCost(FIXED_MS, 0.0, 0.0, 0.0)


def poisson(rate: float) -> dict[str, object]:
    return {"kind": "poisson", "rate": rate}


def waits(ended: list[Ended]) -> np.ndarray:
    return np.asarray([e.timeline.queue_s for e in ended if e.timeline is not None])


def test_one_row_and_one_step_per_request_is_a_queue_with_one_server_and_constant_service() -> None:
    """Waiting times follow Lindley's recursion exactly; their mean is that of M/D/1, rho s / (2 (1 - rho))."""
    service, rho = FIXED_MS / 1e3, 0.4
    plan = plan_of(num_requests=1500, drain_s=1e6, stream=[stream(poisson(rho / service), 4, 1)])
    ended, _ = run_fleet(plan, replica_spec(max_num_seqs=1, prefix_caching=False), cost=FLAT)
    at = np.asarray([r.at_s for r in plan.requests])
    expected = [0.0]
    for gap in np.diff(at):
        expected.append(max(0.0, expected[-1] + service - gap))
    assert waits(ended) == pytest.approx(expected, abs=1e-9)
    assert waits(ended).mean() == pytest.approx(rho * service / (2 * (1 - rho)), rel=0.1)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_saturated_engine_ends_as_many_requests_per_step_as_it_has_rows(rows: int) -> None:
    num = 200
    burst = {"kind": "burst", "size": num, "every_s": 1.0}
    plan = plan_of(num_requests=num, drain_s=1e6, stream=[stream(burst, 4, 1)])
    ended, cluster = run_fleet(plan, replica_spec(max_num_seqs=rows, prefix_caching=False), cost=FLAT)
    took = max(e.end_s for e in ended) - plan.requests[0].at_s  # type: ignore[operator]
    assert cluster.totals.num_steps == num / rows  # the first is full as well
    assert took == pytest.approx(num / rows * FIXED_MS / 1e3, abs=1e-9)


def test_a_constant_batch_has_the_step_as_its_time_per_token() -> None:
    plan = plan_of(num_requests=4, drain_s=1e6, stream=[stream({"kind": "burst", "size": 4, "every_s": 1.0}, 8, 50)])
    ended, _ = run_fleet(plan, replica_spec(num_blocks=4096), cost=FLAT)
    assert [e.timeline.tpot_s for e in ended] == pytest.approx([FIXED_MS / 1e3] * 4)  # type: ignore[union-attr]


def test_unloaded_ttft_is_the_price_of_the_prompt() -> None:
    plan = plan_of(num_requests=3, drain_s=1e6, stream=[stream({"kind": "constant", "rate": 0.1}, 40, 2)])
    ended, _ = run_fleet(plan)
    expected = COST.step_ms(prefill_shape(40)) / 1e3
    assert [e.timeline.ttft_s for e in ended] == pytest.approx([expected] * 3)  # type: ignore[union-attr]


def test_blocks_are_all_back_and_tokens_are_all_accounted_for() -> None:
    lengths = {"kind": "lognormal", "p50": 20, "p99": 60, "max": 80}
    plan = plan_of(num_requests=120, drain_s=1e6, stream=[stream(poisson(30.0), lengths, lengths)])
    ended, cluster = run_fleet(plan, replica_spec(num_blocks=60, max_num_seqs=6), num_replicas=2)
    preemptions = 0
    for e in ended:
        assert e.outcome is Outcome.OK
        assert e.timeline is not None
        assert e.usage is not None
        assert e.timeline.num_tokens == e.planned.num_output_tokens == e.usage.output_tokens
        assert e.usage.prompt_tokens == e.planned.num_input_tokens
        served = e.usage.computed_tokens - e.usage.wasted_tokens + e.usage.cached_tokens
        assert served == e.usage.prompt_tokens + e.usage.output_tokens - 1
        assert e.timeline.queue_s >= 0.0
        preemptions += e.usage.preemptions
    assert preemptions > 0  # the cache was too small: that is the case worth checking
    for replica in cluster.replicas:
        assert replica is not None
        stats = replica.kv.stats()
        assert (stats.held, stats.limbo, stats.reserved) == (0, 0, 0)
        assert stats.free + stats.cached == stats.total


def simulated(drawn: int, rate: float, **options: object) -> tuple[list[RequestRecord], RunInfo]:
    table = {
        "duration_s": 14.0,
        "warmup_s": 2.0,
        "drain_s": 60.0,
        "slo": {"default": {"ttft_ms": 300.0, "tpot_ms": 50.0}},
        "stream": [stream(poisson(rate), {"kind": "lognormal", "p50": 30, "p99": 90, "max": 120}, 12)],
    }
    spec = load_spec(table)
    plan = make_plan(spec, seed=drawn)
    records: list[RequestRecord] = []
    cost, lag_s = options.pop("cost", COST), options.get("lag_s", 0.0)
    cluster = make_cluster(replica_spec(), cost, plan, on_end=lambda e: records.append(record_of(e, lag_s)), **options)  # type: ignore[arg-type]
    cluster.run()
    records.sort(key=lambda r: r.id)
    target = TargetInfo(url="sim://here", model="none", kind="simulation")
    return records, info_of(spec, plan, records, target=target, config={}, fingerprint={})


def test_the_same_seed_gives_the_same_artefact_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        records, info = simulated(3, 12.0, num_replicas=2, router="power-of-two", seed=3)
        write_run(tmp_path / name, info, records)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert "metrics.json" in files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    others, _ = simulated(4, 12.0, num_replicas=2, router="power-of-two", seed=4)
    assert others != records


def test_littles_law_holds_in_the_labs_own_numbers() -> None:
    records, info = simulated(1, 10.0)
    metrics = compute(info, records)
    assert metrics.littles_law_error is not None
    assert metrics.littles_law_error < 0.05
    assert not [c for c in metrics.cautions if c.invalidates]


def mean_of(records: list[RequestRecord], name: str) -> float:
    first = {"ttft": 0, "e2e": -1}[name]
    return float(np.mean([(r.chunks[first].t_ns - r.t_plan_ns) / 1e9 for r in records]))


def test_latency_grows_with_the_rate_and_shrinks_with_faster_hardware() -> None:
    by_rate = [simulated(5, rate)[0] for rate in (2.0, 8.0, 20.0)]
    means = [mean_of(records, name) for name in ("ttft", "e2e") for records in by_rate]
    assert means[0] < means[1] < means[2]
    assert means[3] < means[4] < means[5]
    faster = LinearStepCost(fixed_ms=4.0, per_token_ms=0.125, per_row_ms=0.25, per_context_token_ms=0.001)
    quick = simulated(5, 20.0, cost=faster)[0]
    assert mean_of(quick, "ttft") < means[2]
    assert mean_of(quick, "e2e") < means[5]


def test_what_an_answer_takes_outside_the_engine_comes_on_top_and_holds_up_whoever_waits_for_it() -> None:
    (there, _), (late, _) = simulated(1, 10.0), simulated(1, 10.0, lag_s=0.05)
    for one, other in zip(there, late, strict=True):
        assert [c.t_ns + 50_000_000 for c in one.chunks] == pytest.approx([c.t_ns for c in other.chunks], abs=2)
        assert other.t_close_ns - one.t_close_ns == pytest.approx(50_000_000, abs=2)
        assert other.server == one.server | {"server_ms": 50.0}
    one_after_another = plan_of(
        num_requests=4, stream=[stream({"kind": "closed", "slots": 1, "requests": 4}, 16, 8)], duration_s=60
    )
    ended, _ = run_fleet(one_after_another, lag_s=0.05)
    gaps = [after.sent_s - before.end_s for before, after in pairwise(ended)]
    assert gaps == pytest.approx([0.05] * 3)
