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
from dataclasses import dataclass
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
from paceline.sim.requests import by_class


@dataclass(frozen=True)
class Device:
    """Whose prices, and what a sweep tries there."""

    cost: CostModel
    chunks: tuple[int, ...]  # prompt positions of one request in a step
    rows: tuple[int, ...]
    max_model_len: int


# SmolLM2-135M on two cores with AVX2; an 8B model in bfloat16 on an accelerator of 3 TB/s
DEVICES = {
    "cores": Device(
        LinearStepCost(fixed_ms=10.0, per_token_ms=0.9, per_row_ms=0.5, per_context_token_ms=0.001),
        chunks=(32, 128),
        rows=(4, 8, 24),
        max_model_len=2048,
    ),
    "accelerator": Device(
        LinearStepCost(fixed_ms=7.0, per_token_ms=0.025, per_row_ms=0.05, per_context_token_ms=0.00004),
        chunks=(256, 1024),
        rows=(16, 48, 128),
        max_model_len=16_384,
    ),
}
BUDGETS = (1.0, 2.0)  # chunks that a step takes beside its rows
WAITING = (None, 1.0)  # longest queue, in rows; None: no bound
SWEEP_SEED, SEEDS = 1, (2, 3)
NUM_REQUESTS = 100
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the lab's own rate for the cell
NUM_FIXED = 24
KV_BLOCKS = 16_384


def replica(device: Device, **settings: Any) -> ReplicaSpec:
    return with_settings(SchedulerSettings(**{"max_model_len": device.max_model_len, "policy": "priority", **settings}))


def with_settings(settings: SchedulerSettings) -> ReplicaSpec:
    group = KVGroupSpec(kind="full", layers=(0,), block_size=16, bytes_per_block=1 << 16)
    return ReplicaSpec(settings=settings, layout=KVLayout(groups=(group,), num_blocks=KV_BLOCKS))


def fixed(device: Device) -> Iterator[tuple[str, ReplicaSpec]]:
    for chunk, rows, budget, waiting in itertools.product(device.chunks, device.rows, BUDGETS, WAITING):
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


def auto(device: Device, **more: Any) -> ReplicaSpec:
    """The bounds of the sweep, and nothing chosen."""
    rows = device.rows[-1]
    return replica(
        device,
        max_num_seqs=rows,
        max_num_batched_tokens=rows + round(BUDGETS[-1] * device.chunks[-1]),
        scheduling_mode="auto",
        **more,
    )


def mixed(device: Device) -> WorkloadSpec:
    """Chat, questions over long documents, and long answers, each with the targets of its kind, in one queue."""
    size = size_of(device.cost, auto(device).settings)
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
    totals = make_cluster(spec, cost, plan, on_end=ended.append, terms=by_class(slos)).run()
    good = sum(
        e.timeline is not None and e.outcome.value == "ok" and e.timeline.is_good(slos.get(e.planned.slo_class, Slo()))
        for e in ended
    )
    return good, ended, totals.virtual_s


def near_saturation(device: Device, spec: WorkloadSpec, share: float) -> WorkloadSpec:
    """At the lowest rate at which less than `share` of the requests are good, whichever of a few fixed settings."""
    if any(isinstance(stream.arrival, Closed) for stream in spec.streams):
        return spec
    few = [setting for _, setting in fixed(device)][:: NUM_FIXED // 4 + 1]
    slos = targets(spec)
    for factor in RATES:
        rate = factor * offered_rps(spec)
        found = scale(spec, rate=rate, duration_s=NUM_REQUESTS / rate)
        plan = make_plan(found, seed=0)
        if max(run(setting, device.cost, plan, slos)[0] for setting in few) < share * len(plan.requests):
            break
    return found


def targets(spec: WorkloadSpec) -> dict[str, Slo]:
    return {name: each.slo for name, each in spec.slo.items()}


def best_fixed(device: Device, spec: WorkloadSpec, seed: int) -> tuple[str, ReplicaSpec]:
    """The setting of the sweep with the most good requests on this seed; of equals the first."""
    plan, slos = make_plan(spec, seed=seed), targets(spec)
    return max(fixed(device), key=lambda each: run(each[1], device.cost, plan, slos)[0])


def compare(
    device: Device, spec: WorkloadSpec, *, sweep_seed: int = SWEEP_SEED, seeds: Sequence[int] = SEEDS
) -> tuple[float, str]:
    """Goodput of `auto` over that of the best fixed setting, and a row of the table."""
    cost = device.cost
    slos = targets(spec)
    name, best = best_fixed(device, spec, sweep_seed)
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
    device = DEVICES[options.device]
    size = size_of(device.cost, auto(device).settings)
    print(f"{'cell':<14} {'num':>6} {'fixed':>8} {'auto':>8} {'ratio':>7}   best fixed setting")
    for cell in options.cells.split(","):
        spec = mixed(device) if cell == "mixed" else named(cell, size, num_requests=NUM_REQUESTS)[0]
        load = near_saturation(device, spec, options.share)
        _, words = compare(device, load, sweep_seed=options.sweep_seed, seeds=seeds)
        print(f"{cell:<14} {words}", flush=True)


if __name__ == "__main__":
    main()
