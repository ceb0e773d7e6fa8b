"""Router policies on the Mooncake conversation trace: what prefix caches, prices and a router's own ledger are worth.

    python benchmarks/external/mooncake.py DATA [--requests 12031] [--replicas 8] [--seed 0]

DATA holds `mooncake_conversation_trace.jsonl` (or .gz) of https://github.com/kvcache-ai/Mooncake, FAST25-release.
Each replica runs the engine's own scheduler and prefix cache, as one whose KV cache holds 6,000 blocks of 512 tokens
and which computes 8,000 prompt tokens a second. All requests of this trace begin with the same block, and come in
batches of up to 28 every three seconds. For each policy: prefix hits, TTFT, the share of first tokens within 2 s, and
the busiest replica's requests over the mean. Expected, and checked (exit status 1 when not so):

    longest match alone sends all to one replica     with ties to the first, and nothing but the match looked at
    predicted seconds does best                      of all policies, by the share within 2 s
    the ledger matters                               the same, told of loads every 5 s only, does worse

Data: traces/mooncake_conversation_trace.jsonl*
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.workload import PlannedRequest
from paceline.cost import LinearStepCost
from paceline.engine.settings import SchedulerSettings
from paceline.lab.workload import Plan, load_spec, make_plan
from paceline.lab.workload.traces.reading import open_trace
from paceline.router import Ask, Load, Policy, Reports, make_policy
from paceline.sim.cluster import Ended
from paceline.sim.fleet import ReplicaSpec, make_cluster

BLOCK, BLOCKS = 512, 6_000
TTFT_S = 2.0
STEP_TOKENS, ROWS = 4_096, 128
# 8,000 prompt tokens a second; a decode step of 32 rows at 10,000 tokens each takes 26 ms
COST = LinearStepCost(fixed_ms=8.0, per_token_ms=0.125, per_row_ms=0.1, per_context_token_ms=0.000035)


class LongestMatch:
    """Whoever has most of the prompt, and of equals the first: nothing else is looked at."""

    looks_at_cache = True

    def choose(self, ask: Ask, loads: Sequence[Load]) -> Load:
        return max(loads, key=lambda load: ask.cached(load.replica))


class Row(NamedTuple):
    """What became of one policy."""

    name: str
    hit: float  # share of prompt tokens
    ttft_s: tuple[float, float, float]  # p50, p90, p99
    within: float  # share of all requests whose first token came within TTFT_S
    over_mean: float  # requests of the busiest replica over the mean
    took_s: float  # CPU


def load(path: Path, requests: int, seed: int) -> Plan:
    """The trace's first `requests` at its own pace."""
    stream = {"arrival": {"kind": "trace", "file": str(path.resolve()), "scale": 1.0}}
    seconds = open_trace(path).end_s * (1 - 1e-9)
    spec = {"duration_s": seconds, "drain_s": 1e6, "max_model_len": 131_072, "stream": [stream]}
    plan = make_plan(load_spec(spec), seed=seed)
    kept: tuple[PlannedRequest, ...] = plan.requests[:requests]
    return Plan(requests=kept, span_s=0.0, drain_s=1e6)


def replica() -> ReplicaSpec:
    group = KVGroupSpec(kind="full", layers=(0,), block_size=BLOCK, bytes_per_block=1 << 20)
    settings = SchedulerSettings(
        max_num_seqs=ROWS, max_num_batched_tokens=STEP_TOKENS, max_model_len=262_144, wait_for_prefix=False
    )
    return ReplicaSpec(settings=settings, layout=KVLayout(groups=(group,), num_blocks=BLOCKS))


def run(name: str, policy: Policy, plan: Plan, replicas: int, *, reports: Reports | None = None) -> Row:
    """One policy over the whole plan."""
    ttft_s, cached, prompts = np.full(len(plan.requests), np.inf), 0, 0

    def told(ended: Ended) -> None:
        nonlocal cached, prompts
        if ended.timeline is not None and ended.usage is not None:
            ttft_s[ended.planned.id] = ended.timeline.ttft_s
            cached += ended.usage.cached_tokens
            prompts += ended.usage.prompt_tokens

    began = time.process_time()
    cluster = make_cluster(replica(), COST, plan, on_end=told, num_replicas=replicas, router=policy, reports=reports)
    cluster.run()
    quantiles = np.quantile(ttft_s, [0.5, 0.9, 0.99], method="inverted_cdf")
    return Row(
        name=name,
        hit=cached / max(1, prompts),
        ttft_s=(float(quantiles[0]), float(quantiles[1]), float(quantiles[2])),
        within=float((ttft_s <= TTFT_S).mean()),
        over_mean=max(cluster.num_requests) * replicas / max(1, sum(cluster.num_requests)),
        took_s=time.process_time() - began,
    )


def table(plan: Plan, replicas: int, seed: int = 0) -> list[Row]:
    """Each policy, and the best without its ledger; printed as they are done."""
    mean_output = sum(r.num_output_tokens for r in plan.requests) / len(plan.requests)

    def named(name: str) -> Policy:
        return make_policy(
            name, COST, step_tokens=STEP_TOKENS, max_rows=ROWS, mean_output_tokens=mean_output, seed=seed
        )

    rows = []
    print(f"{'policy':34} {'hit':>6} {'TTFT p50':>9} {'p90':>7} {'p99':>7} {'<= 2 s':>7} {'max/mean':>8} {'CPU s':>6}")
    policies: list[tuple[str, Policy, Reports | None]] = [
        ("longest match only", LongestMatch(), None),
        *((name, named(name), None) for name in ("round-robin", "least-loaded", "power-of-two", "prefix-affinity")),
        ("predicted-seconds", named("predicted-seconds"), None),
        ("predicted-seconds, told every 1 s", named("predicted-seconds"), Reports(1.0)),
        ("predicted-seconds, told every 5 s", named("predicted-seconds"), Reports(5.0)),
    ]
    for name, policy, reports in policies:
        row = run(name, policy, plan, replicas, reports=reports)
        rows.append(row)
        p50, p90, p99 = row.ttft_s
        print(
            f"{name:34} {row.hit:6.3f} {p50:8.2f}s {p90:6.2f}s {p99:6.1f}s {row.within:7.3f} {row.over_mean:8.2f} "
            f"{row.took_s:6.1f}",
            flush=True,
        )
    return rows


def surprises(rows: Sequence[Row], replicas: int) -> list[str]:
    """What is not as expected; empty: nothing."""
    by_name = {row.name: row for row in rows}
    longest, best = by_name["longest match only"], by_name["predicted-seconds"]
    others = [row for row in rows if "predicted" not in row.name]
    found = []
    if longest.over_mean < 0.95 * replicas or longest.within > 0.5 * best.within:
        found.append("longest match alone does not send all to one replica, or that does no harm")
    if best.within < max(row.within for row in others):
        found.append("another policy does better than predicted seconds")
    if by_name["predicted-seconds, told every 5 s"].within > best.within - 0.02:
        found.append("the router's own ledger makes no difference")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--requests", type=int, default=12_031)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = sorted(options.data.glob("mooncake_conversation_trace.jsonl*"))
    if not found:
        print(f"no mooncake_conversation_trace.jsonl in {options.data}", file=sys.stderr)
        return 2
    plan = load(found[0], options.requests, options.seed)
    span_s = max(request.at_s or 0.0 for request in plan.requests)
    print(f"{len(plan.requests)} requests over {span_s:.0f} s, {options.replicas} replicas")
    wrong = surprises(table(plan, options.replicas, options.seed), options.replicas)
    for sentence in wrong:
        print(f"NOT AS EXPECTED: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
