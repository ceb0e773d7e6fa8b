"""SLO mode against the best fixed setting of a sweep, in virtual time: `python benchmarks/sim/slo_mode.py`.

For each workload of the lab's matrix, and a mixed one, near saturation: 24 fixed settings (chunk x rows x budget x
queue bound) are tried on one seed, the one with the most good requests is kept, and it and `scheduling_mode=auto` are
run on other seeds. Printed: goodput of both, and the ratio. No clock is read: the numbers are the same anywhere.

    --device cores | accelerator      whose prices                       --cells mixed,burst,...
    --seeds 2,3                       that are reported                  --sweep-seed 1    that the best is found on
    --share 0.85                      of the requests are good with the best fixed setting: what "near saturation" is
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.ports import CostModel
from paceline.contracts.slo import Slo
from paceline.cost import LinearStepCost
from paceline.engine.settings import SchedulerSettings
from paceline.lab.workload import MATRIX, Plan, WorkloadSpec, make_plan, named, offered_rps, scale
from paceline.lab.workload.arrivals import Closed
from paceline.sim.cluster import Ended
from paceline.sim.fleet import ReplicaSpec, make_cluster, size_of

# SmolLM2-135M on two cores with AVX2; an 8B model in bfloat16 on an accelerator of 3 TB/s
DEVICES: dict[str, CostModel] = {
    "cores": LinearStepCost(fixed_ms=10.0, per_token_ms=0.9, per_row_ms=0.5, per_context_token_ms=0.001),
    "accelerator": LinearStepCost(fixed_ms=7.0, per_token_ms=0.025, per_row_ms=0.05, per_context_token_ms=0.00004),
}
CHUNKS = {"cores": (32, 128), "accelerator": (256, 1024)}
ROWS = {"cores": (4, 8, 24), "accelerator": (16, 48, 128)}
BUDGETS = (1.0, 2.0)  # chunks that a step takes beside its rows
WAITING = (None, 1.0)  # longest queue, in rows; None: no bound
SWEEP_SEED, SEEDS = 1, (2, 3)
NUM_REQUESTS = 100
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the lab's own rate for the cell
NUM_FIXED = 24
KV_BLOCKS = 16_384


def replica(device: str, **settings: Any) -> ReplicaSpec:
    group = KVGroupSpec(kind="full", layers=(0,), block_size=16, bytes_per_block=1 << 16)
    given = {"max_model_len": 2048 if device == "cores" else 16_384, "policy": "priority", **settings}
    return ReplicaSpec(settings=SchedulerSettings(**given), layout=KVLayout(groups=(group,), num_blocks=KV_BLOCKS))


def fixed(device: str) -> Iterator[tuple[str, ReplicaSpec]]:
    for chunk, rows, budget, waiting in itertools.product(CHUNKS[device], ROWS[device], BUDGETS, WAITING):
        bound = None if waiting is None else round(waiting * rows)
        name = f"chunk {chunk}, {rows} rows, budget {budget:g}, queue {bound or 'any'}"
        yield (
            name,
            replica(
                device,
                max_num_seqs=rows,
                max_num_batched_tokens=rows + round(budget * chunk),
                prefill_chunk_tokens=chunk,
                max_waiting_requests=bound,
            ),
        )


def auto(device: str, **more: Any) -> ReplicaSpec:
    """The bounds of the sweep, and nothing chosen."""
    rows = ROWS[device][-1]
    return replica(
        device,
        max_num_seqs=rows,
        max_num_batched_tokens=rows + round(BUDGETS[-1] * CHUNKS[device][-1]),
        scheduling_mode="auto",
        **more,
    )


def mixed(device: str) -> WorkloadSpec:
    """Chat, questions over long documents, and long answers, each with the targets of its kind, in one queue."""
    size = size_of(DEVICES[device], auto(device).settings)
    parts = {
        name: named(name, size, num_requests=NUM_REQUESTS)[0] for name in ("short-short", "long-short", "short-long")
    }
    streams, slo = [], {}
    for name, spec in parts.items():
        table = msgspec.structs.replace(
            spec.streams[0],
            name=name,
            slo_class=name,
            arrival=msgspec.structs.replace(spec.streams[0].arrival, rate=spec.streams[0].arrival.rate / 3),
        )
        streams.append(table)
        slo[name] = msgspec.structs.replace(spec.slo["default"], name=name)
    first = parts["short-short"]
    made = msgspec.structs.replace(first, name="mixed", streams=tuple(streams), slo=slo)
    return scale(made, duration_s=NUM_REQUESTS / offered_rps(made))


def run(spec: ReplicaSpec, cost: CostModel, plan: Plan, slos: dict[str, Slo]) -> tuple[int, list[Ended], float]:
    """Good requests, all that ended, virtual seconds."""
    ended: list[Ended] = []
    totals = make_cluster(spec, cost, plan, on_end=ended.append, slos=slos).run()
    good = sum(
        e.timeline is not None and e.outcome.value == "ok" and e.timeline.is_good(slos.get(e.planned.slo_class, Slo()))
        for e in ended
    )
    return good, ended, totals.virtual_s


def near_saturation(device: str, spec: WorkloadSpec, share: float) -> WorkloadSpec:
    """At the lowest rate at which less than `share` of the requests are good, whichever of a few fixed settings."""
    if any(isinstance(stream.arrival, Closed) for stream in spec.streams):
        return spec
    few = [setting for _, setting in fixed(device)][:: NUM_FIXED // 4 + 1]
    slos = targets(spec)
    for factor in RATES:
        rate = factor * offered_rps(spec)
        found = scale(spec, rate=rate, duration_s=NUM_REQUESTS / rate)
        plan = make_plan(found, seed=0)
        if max(run(setting, DEVICES[device], plan, slos)[0] for setting in few) < share * len(plan.requests):
            break
    return found


def targets(spec: WorkloadSpec) -> dict[str, Slo]:
    return {name: each.slo for name, each in spec.slo.items()}


def compare(
    device: str, spec: WorkloadSpec, *, sweep_seed: int = SWEEP_SEED, seeds: Sequence[int] = SEEDS
) -> tuple[float, str]:
    """Goodput of `auto` over that of the best fixed setting, and a row of the table."""
    cost = DEVICES[device]
    slos = targets(spec)
    plan = make_plan(spec, seed=sweep_seed)
    tried = [(run(setting, cost, plan, slos)[0], name, setting) for name, setting in fixed(device)]
    _, name, best = max(tried, key=lambda each: each[0])
    of_fixed = of_auto = num = 0
    for seed in seeds:
        plan = make_plan(spec, seed=seed)
        num += len(plan.requests)
        of_fixed += run(best, cost, plan, slos)[0]
        of_auto += run(auto(device), cost, plan, slos)[0]
    ratio = of_auto / of_fixed if of_fixed else float("nan")
    words = f"{num:>6} {of_fixed / num:>8.3f} {of_auto / num:>8.3f} {ratio:>7.3f}   {name}"
    return ratio, words


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(DEVICES), default="cores")
    parser.add_argument("--cells", default=",".join(["mixed", *MATRIX]))
    parser.add_argument("--share", type=float, default=0.85)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--sweep-seed", type=int, default=SWEEP_SEED)
    options = parser.parse_args(argv)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    device = options.device
    size = size_of(DEVICES[device], auto(device).settings)
    print(f"{'cell':<14} {'num':>6} {'fixed':>8} {'auto':>8} {'ratio':>7}   best fixed setting")
    for cell in options.cells.split(","):
        spec = mixed(device) if cell == "mixed" else named(cell, size, num_requests=NUM_REQUESTS)[0]
        load = near_saturation(device, spec, options.share)
        _, words = compare(device, load, sweep_seed=options.sweep_seed, seeds=seeds)
        print(f"{cell:<14} {words}", flush=True)


if __name__ == "__main__":
    main()
