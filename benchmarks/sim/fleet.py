"""How fast a fleet is simulated: `python benchmarks/sim/fleet.py [--replicas 1000] [--requests 150000] [--profile]`.

Two cells, each with the engine's own scheduler and KV manager in every replica, on one core: plenty of KV and no prefix
cache; KV that runs short and shared prefixes. Prints CPU seconds, their ratio to the goal, and peak memory. The plan is
made before the clock starts; its time is printed too.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import resource
import time

import numpy as np

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.slo import Outcome
from paceline.cost import LinearStepCost
from paceline.engine.settings import SchedulerSettings
from paceline.lab.workload import Plan, load_spec, make_plan
from paceline.sim.cluster import Ended
from paceline.sim.fleet import ReplicaSpec, make_cluster

GOALS_S = {"plain": 30.0, "limits": 120.0}  # for 1,000 replicas and 150,000 requests; other sizes in proportion
GOAL_REQUESTS = 150_000
RATE_PER_REPLICA = 2.5  # requests/s
COST = LinearStepCost(fixed_ms=8.0, per_token_ms=0.02, per_row_ms=0.3, per_context_token_ms=0.0005)


def make_load(cell: str, replicas: int, requests: int) -> Plan:
    stream = {
        "arrival": {"kind": "poisson", "rate": RATE_PER_REPLICA * replicas},
        "input": {"kind": "lognormal", "p50": 200, "p99": 1200, "max": 2000},
        "output": {"kind": "lognormal", "p50": 170, "p99": 600, "max": 1000},
    }
    if cell == "limits":
        stream["prefix"] = {"groups": 2 * replicas, "tokens": 256, "zipf": 0.8}
    return make_plan(load_spec({"num_requests": requests, "drain_s": 1e6, "stream": [stream]}), seed=0)


def make_replica_spec(cell: str) -> ReplicaSpec:
    group = KVGroupSpec(kind="full", layers=(0,), block_size=16, bytes_per_block=1 << 16)
    settings = SchedulerSettings(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=4096)
    num_blocks = 20_000 if cell == "plain" else 320
    return ReplicaSpec(
        settings=settings, layout=KVLayout(groups=(group,), num_blocks=num_blocks), prefix_caching=cell == "limits"
    )


class Told:
    """What is kept of each request: a few numbers."""

    def __init__(self, num: int) -> None:
        self.ttft_s = np.full(num, np.nan)
        self.sojourn_s = 0.0
        self.num_ok = self.num_tokens = self.num_cached = self.num_prompt = self.preemptions = 0

    def __call__(self, ended: Ended) -> None:
        timeline, usage = ended.timeline, ended.usage
        if timeline is None or usage is None:
            return
        self.ttft_s[ended.planned.id] = timeline.ttft_s
        self.sojourn_s += timeline.end - timeline.admitted
        self.num_ok += ended.outcome is Outcome.OK
        self.num_tokens += usage.output_tokens
        self.num_cached += usage.cached_tokens
        self.num_prompt += usage.prompt_tokens
        self.preemptions += usage.preemptions


def run(cell: str, replicas: int, requests: int, router: str, *, profile: bool) -> None:
    began = time.process_time()
    plan = make_load(cell, replicas, requests)
    planned_s = time.process_time() - began
    told = Told(len(plan.requests))
    cluster = make_cluster(
        make_replica_spec(cell),
        COST,
        plan,
        on_end=told,
        num_replicas=replicas,
        router=router,
        seed=0,
        token_times=False,
    )
    gc.collect()  # nothing below makes cycles: looking for them would only walk what is open, again and again
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    profiler = cProfile.Profile() if profile else None
    began = time.process_time()
    totals = profiler.runcall(cluster.run) if profiler is not None else cluster.run()
    took_s = time.process_time() - began
    goal_s = GOALS_S[cell] * requests / GOAL_REQUESTS
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = told.sojourn_s / totals.busy_s if totals.busy_s else 0.0
    print(
        f"{cell}: {replicas} replicas, {len(plan.requests)} requests, {told.num_tokens} output tokens, {router}\n"
        f"  {took_s:.1f} s, {took_s / goal_s:.2f} of the goal of {goal_s:.3g} s; "
        f"{1e6 * took_s / max(1, requests):.0f} us a request; plan made in {planned_s:.1f} s; peak {peak_mib:.0f} MiB\n"
        f"  {totals.virtual_s:.1f} s simulated, {totals.num_steps} steps in {totals.num_events} events, "
        f"{rows:.1f} mean rows, {told.num_ok} ok, "
        f"{100 * told.num_cached / max(1, told.num_prompt):.0f} % cached, {told.preemptions} preemptions, "
        f"TTFT p50 {1e3 * np.nanmedian(told.ttft_s):.1f} ms",
        flush=True,
    )
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=GOAL_REQUESTS)
    parser.add_argument("--router", default="power-of-two")
    parser.add_argument("--cell", choices=[*GOALS_S, "both"], default="both")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    for cell in GOALS_S if options.cell == "both" else (options.cell,):
        run(cell, options.replicas, options.requests, options.router, profile=options.profile)


if __name__ == "__main__":
    main()
