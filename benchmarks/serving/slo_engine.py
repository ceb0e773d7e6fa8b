"""SLO mode against the best fixed setting, on this machine: `PYTHONPATH=. python benchmarks/serving/slo_engine.py`.

One sitting. Prices are learnt from a server under load (`benchmarks/sim/learning.py`). For each cell a load near
saturation and, of the 24 fixed settings of `benchmarks/sim/slo_mode.py`, the best one on one seed are found in virtual
time with these prices. Where this machine then keeps more than `--share` of the requests within their targets, or less
than `--least`, the rate is raised or lowered, and the best setting chosen again for it, until it does not. Then two
real servers, that setting and `scheduling_mode=auto` with the bounds of the sweep, get the same requests of other seeds
in turn (A B, B A, ...), after one load that is not counted.

Printed: goodput of both, the ratio with its 95 % interval over requests and repeats, whichever is wider, the
simulator's own ratio for the same loads, and whether the cell's goals are met: a lower bound of 0.95, and 1.15 for the
mixed load. Ends with 1 where one is missed.

    --cells mixed,burst,short-long    `mixed`: chat, long documents and long answers in one queue
    --repeats 4 --requests 80         of each cell, other seeds each time          --out DIR    keeps every record
    --share 0.85                      of the requests at most are good with the best fixed setting: "near saturation"
    --prices FILE                     learnt before, in this hour: `served.json` of an earlier sitting
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.sim import slo_mode as virtual
from benchmarks.sim.learning import LEARN, learn_prices

from paceline.assemble.step_cost import load_calibration
from paceline.cli.demo_predict import time_steps
from paceline.contracts.ports import CostModel
from paceline.engine.settings import SchedulerSettings
from paceline.lab.artefact import StoredRun
from paceline.lab.experiment import Launch, OwnedServer, measure_size, paceline_argv
from paceline.lab.experiment.edges import Pair, pair_up, ratio_of
from paceline.lab.experiment.figures import samples_of
from paceline.lab.experiment.measure import measure
from paceline.lab.experiment.results import Ratio
from paceline.lab.load import Target, probe
from paceline.lab.metrics import compute
from paceline.lab.workload import WorkloadSpec, make_plan, named, offered_rps, scale

CELLS = "mixed,burst,short-long"
GOALS = {"mixed": 1.15}
LEAST = 0.95  # lower bound of the ratio, on any cell
CHUNKS, ROWS, MAX_MODEL_LEN = (64, 256), (4, 8, 24), 2048
SWEEP_SEED, WARM_SEED, RATE_SEED, FIRST_SEED = 100, 99, 98, 101
SLOWER, MOST_RATES = 0.8, 5
WARM_REQUESTS = 16
MARGIN = 0.02


def options_of(settings: SchedulerSettings, model: str) -> dict[str, Any]:
    """Options of `paceline serve` that make these settings."""
    return {
        "model": model,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "prefill_chunk_tokens": settings.prefill_chunk_tokens,
        "min_prefill_tokens": settings.min_prefill_tokens,
        "max_waiting_requests": settings.max_waiting_requests,
        "scheduling_mode": settings.scheduling_mode,
        "policy": settings.policy,
        "max_wait_ms": 0.0,
    }


def with_classes(spec: WorkloadSpec) -> WorkloadSpec:
    """Its requests name their class to the server: what the server schedules by is its own table."""
    streams = tuple(msgspec.structs.replace(stream, service_class=stream.slo_class) for stream in spec.streams)
    return msgspec.structs.replace(spec, streams=streams)


def class_table(spec: WorkloadSpec) -> str:
    """The server's side of it, as a tenants file."""
    lines = []
    for name, asked in spec.slo.items():
        given = {"ttft_ms": asked.ttft_s, "tpot_ms": asked.tpot_s, "e2e_ms": asked.e2e_s}
        lines += [f"[classes.{name}]", "priority = 0"]
        lines += [f"{key} = {1e3 * seconds:.6g}" for key, seconds in given.items() if seconds is not None]
    return "\n".join(lines) + "\n"


def device_of(cost: CostModel) -> virtual.Device:
    return virtual.Device(cost, CHUNKS, ROWS, MAX_MODEL_LEN)


def learn(model: str, out: Path, seed: int) -> virtual.Device:
    """Prices of this machine while it serves."""
    options = {"model": model, "max_num_seqs": 8, "max_model_len": MAX_MODEL_LEN, "max_wait_ms": 0.0}
    timed, journal = time_steps(options, out), out / "server.journal"
    flags = ("--no-access-log", "--journal", str(journal))
    with OwnedServer(Launch(argv=paceline_argv(options, flags), url=""), out / "learn.log") as server:
        server.wait_ready()
        size = measure_size(asyncio.run(probe(server.url)))
        loads = [scale(spec) for name in LEARN.split(",") for spec in named(name, size, num_requests=40)]
        prices = learn_prices(server, timed, journal, loads, seed=seed, out=out)
    return device_of(prices.cost())


class HopelessError(Exception):
    """A cell of which no rate that was tried could be borne here."""


class Bench:
    """One cell: its folder, and how to serve it."""

    def __init__(self, cell: str, classes: str, how: argparse.Namespace, out: Path) -> None:
        out.mkdir(parents=True)
        table = out / "classes.toml"
        table.write_text(classes)
        self.cell, self.how, self.out = cell, how, out
        self._flags = ("--no-access-log", "--tenants", str(table))

    @contextmanager
    def served(self, settings: SchedulerSettings, spec: WorkloadSpec, name: str) -> Iterator[Target]:
        """A server with these settings, warm."""
        launch = Launch(argv=paceline_argv(options_of(settings, self.how.model), self._flags), url="")
        with OwnedServer(launch, self.out / f"{name}.log") as server:
            server.wait_ready()
            target = asyncio.run(probe(server.url))
            short = scale(spec, duration_s=WARM_REQUESTS / offered_rps(spec))
            measure(target, short, seed=WARM_SEED, out=self.out / f"{name}-warm")
            yield target

    def bearable(self, device: virtual.Device, spec: WorkloadSpec) -> tuple[WorkloadSpec, str, SchedulerSettings]:
        """A load near saturation here, and the best fixed setting of the sweep for it: the first of the rates tried at
        which that keeps from `--least` (a ratio of two servers that both fail says nothing) to `--share` of the
        requests within their targets. Where no rate lies between, the lower neighbour. Raises HopelessError when all
        are too high."""
        borne: tuple[WorkloadSpec, str, SchedulerSettings] | None = None
        for attempt in range(MOST_RATES):
            name, best = virtual.best_fixed(device, spec, SWEEP_SEED)
            with self.served(best.settings, spec, f"rate-{attempt}") as target:
                run = measure(target, spec, seed=RATE_SEED, out=self.out / f"rate-{attempt}")
            share = compute(run.info, run.records).groups[0].attainment.value or 0.0
            print(f"  {share:.0%} good at {offered_rps(spec):.3g}/s with {name}", file=sys.stderr, flush=True)
            if self.how.least <= share <= self.how.share:
                return spec, name, best.settings
            if share > self.how.share:
                borne, factor = (spec, name, best.settings), 1.0 / SLOWER
            elif borne is not None:
                return borne
            else:
                factor = SLOWER
            spec = scale(spec, rate=offered_rps(spec) * factor, duration_s=spec_seconds(spec) / factor)
        if borne is not None:
            return borne
        raise HopelessError(f"at no rate down to {offered_rps(spec) / SLOWER:.3g}/s {self.how.least:.0%} good")

    def measured(self, spec: WorkloadSpec, arms: Sequence[SchedulerSettings]) -> Iterator[list[StoredRun]]:
        """Of each repeat the runs of the arms, in their order; the arms take turns at who is first."""
        repeats = self.how.repeats
        with ExitStack() as servers:
            targets = [servers.enter_context(self.served(arm, spec, f"server-{at}")) for at, arm in enumerate(arms)]
            for repeat in range(repeats):
                order = range(len(arms)) if repeat % 2 == 0 else reversed(range(len(arms)))
                runs = {
                    at: measure(targets[at], spec, seed=FIRST_SEED + repeat, out=self.out / f"{repeat}-{at}")
                    for at in order
                }
                print(f"  {self.cell}: {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
                yield [runs[at] for at in range(len(arms))]


def spec_seconds(spec: WorkloadSpec) -> float:
    """How long its arrivals take."""
    assert spec.duration_s is not None
    return spec.duration_s


def ratio(repeats: Sequence[Sequence[StoredRun]]) -> Ratio:
    """Goodput of the second arm over the first's."""
    pairs: list[Pair] = []
    for at, (first, second) in enumerate(repeats):
        samples = [samples_of(run.info, run.records) for run in (first, second)]
        pairs.append(pair_up(at, *samples))
    return ratio_of("goodput_rps", pairs, MARGIN)


def missed(cell: str, found: Ratio) -> list[str]:
    """The goals of the cell that this ratio does not reach, in words."""
    goals = [("lower bound", found.ratio.lo, LEAST)]
    if cell in GOALS:
        goals.append(("ratio", found.ratio.value, GOALS[cell]))
    return [f"{what} below {goal}" for what, value, goal in goals if value is None or not value >= goal]


def one_cell(cell: str, device: virtual.Device, how: argparse.Namespace, out: Path) -> tuple[str, bool]:
    """A row of the table, and whether the cell's goals are met."""
    size = virtual.size_of(device.cost, virtual.auto(device).settings)
    spec = virtual.mixed(device) if cell == "mixed" else named(cell, size, num_requests=virtual.NUM_REQUESTS)[0]
    load = with_classes(virtual.near_saturation(device, spec, how.share))
    load = scale(load, duration_s=how.requests / offered_rps(load))
    bench = Bench(cell, class_table(load), how, out)
    load, name, best = bench.bearable(device, load)
    arms = [best, virtual.auto(device).settings]
    repeats = list(bench.measured(load, arms))
    plans, slos = [make_plan(load, seed=FIRST_SEED + repeat) for repeat in range(how.repeats)], virtual.targets(load)
    foretold = [
        sum(virtual.run(virtual.with_settings(arm), device.cost, plan, slos)[0] for plan in plans) for arm in arms
    ]
    found = ratio(repeats)
    lo, hi = found.ratio.lo, found.ratio.hi
    bounds = "unknown" if lo is None or hi is None else f"[{lo:.3f}, {hi:.3f}]"
    failed = missed(cell, found)
    row = (
        f"{cell:<12} {offered_rps(load):>6.2f} {found.parent or 0:>8.3f} {found.child or 0:>8.3f} "
        f"{found.ratio.value or 0:>7.3f} {bounds:>16} {foretold[1] / max(1, foretold[0]):>10.3f}   {name} "
        f"({', '.join(failed) or 'met'})"
    )
    return row, not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--requests", type=int, default=80, help="of one load, about")
    parser.add_argument("--share", type=float, default=0.85)
    parser.add_argument("--least", type=float, default=0.6, help="share of good requests with the fixed setting")
    parser.add_argument("--prices", type=Path)
    parser.add_argument("--out", type=Path)
    how = parser.parse_args()
    out = how.out or Path(tempfile.mkdtemp(prefix="slo-engine-"))
    out.mkdir(parents=True, exist_ok=True)
    device = device_of(load_calibration(how.prices).cost()) if how.prices else learn(how.model, out, seed=1)
    print(
        f"{'cell':<12} {'req/s':>6} {'fixed':>8} {'auto':>8} {'ratio':>7} {'95 %':>16} {'simulated':>10}   best fixed"
    )
    met = True
    for cell in how.cells.split(","):
        try:
            row, good = one_cell(cell, device, how, out / cell)
        except HopelessError as error:
            row, good = f"{cell:<12} {error}", False
        print(row, flush=True)
        met = met and good
    print(f"load average {os.getloadavg()[0]:.1f}; records in {out}", file=sys.stderr)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
