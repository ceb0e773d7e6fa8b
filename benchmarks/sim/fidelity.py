"""How near the simulator is to this machine: matrix cells measured on a real server and simulated, request by request.

    PYTHONPATH=. python benchmarks/sim/fidelity.py [--cells prefix-low,rag,burst] [--loads 0.4 0.7] [--requests 40]
                                                   [--learn short-short,long-short,short-long] [--out DIR]

One sitting: steps are timed (`paceline calibrate`) and a server is started with a journal. The cells of `--learn` are
loaded first, and what they show goes into prices (`calibrate --served`): steps with the loop around them and a client
on the same cores, and what a request takes outside the engine. Then each other cell is loaded at shares of what the
machine could carry, **twice with the same requests**. Simulated is the same plan from those prices, when all has been
measured; `--again DIR` simulates once more what was measured then.

Of each figure three errors are printed, all against the first measurement:

    simulated   prices are multiplied by what probes (single requests before and after the cell) took over what those
                beside learning took: a machine that became slower since is slower at everything
    at speed    the same with what the cell's own steps took over their prices: what is left when the machine's mean
                speed is known, so what the simulator itself gets wrong
    again       the second measurement: how far anything can be foretold here

A cell's first measurement is the one between whose probes the machine moved less; `!` marks more than 5 %.

The figures: a run's median TPOT and time from end to end, its TTFT p50 and p95; and "each", the median over requests of
how far one request's TPOT is off. A measured TTFT includes client, network and server.
Goals: TPOT and end to end 8 %, TTFT p50 15 % and p95 25 %, in the median over cells.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from benchmarks.sim.learning import LEARN, learn_prices, probed

from paceline.assemble.sim import SimulatedEngine, simulate, simulated_engine
from paceline.cli.demo_predict import time_steps
from paceline.config import load_config
from paceline.contracts.artefact import RequestRecord, RunInfo
from paceline.cost import StepCost, restore
from paceline.engine import ServedStep, served_steps
from paceline.lab.artefact import read_run
from paceline.lab.experiment import Launch, OwnedServer, measure_size, paceline_argv
from paceline.lab.experiment.figures import samples_of
from paceline.lab.experiment.measure import measure
from paceline.lab.experiment.nodes import ask_config
from paceline.lab.load import probe
from paceline.lab.workload import WorkloadSpec, load_spec, named, scale

# plain ones: those whose cancellations, timeouts or validity checks the simulator only plans are left out
CELLS = "prefix-high,prefix-low,rag,steady,burst,multi-turn,tenants"
# figure: (of a run's samples, quantile, goal)
FIGURES = {
    "tpot p50": ("tpot_p50_s", 0.5, 0.08),
    "e2e p50": ("e2e_p50_s", 0.5, 0.08),
    "ttft p50": ("ttft_p50_s", 0.5, 0.15),
    "ttft p95": ("ttft_p50_s", 0.95, 0.25),
}
EACH = "tpot each"
MOST_DRIFT = 0.05
SITTING, JOURNAL = "sitting.json", "server.journal"
OPTIONS = {"max_num_seqs": 8, "max_model_len": 2048, "max_wait_ms": 0.0}


Run: TypeAlias = tuple[RunInfo, Sequence[RequestRecord]]


def errors(measured: Run, other: Run) -> dict[str, float]:
    """How far the other run's figures are from those measured, as a share; NaN where one side has no value."""
    (ids, real), (others, made) = samples_of(*measured), samples_of(*other)
    found = {}
    for name, (sample, share, _) in FIGURES.items():
        a, b = (float(np.nanquantile(samples[sample], share, method="higher")) for samples in (real, made))
        found[name] = abs(b / a - 1)
    place = {id_: at for at, id_ in enumerate(others)}
    pairs = [(at, place[id_]) for at, id_ in enumerate(ids) if id_ in place]
    off = [made["tpot_p50_s"][j] / real["tpot_p50_s"][i] - 1 for i, j in pairs]
    finite = [abs(x) for x in off if math.isfinite(x)]
    found[EACH] = statistics.median(finite) if finite else math.nan
    return found


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a cell, whose run lies in `folder` of the sitting."""

    folder: str
    between_s: tuple[float, float]  # on the engine's clock
    probe_ms: float  # before and after it, the mean
    drift: float  # between the two


class MeasuredCell(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    load: float
    runs: tuple[Probed, ...]


class Sitting(msgspec.Struct, kw_only=True):
    """What was measured, in `sitting.json`."""

    options: dict[str, Any]  # of the engine, knobs that it derived included
    seed: int
    learnt_ms: float  # what the probe took beside learning
    cells: list[MeasuredCell] = []


def measure_once(server: OwnedServer, spec: WorkloadSpec, out: Path, folder: str, seed: int) -> Probed:
    target, before_ms = asyncio.run(probed(server))
    began = time.monotonic()
    measure(target, spec, seed=seed, out=out / folder)
    between = (began, time.monotonic())
    after_ms = asyncio.run(probed(server))[1]
    return Probed(
        folder=folder,
        between_s=between,
        probe_ms=(before_ms + after_ms) / 2,
        drift=abs(after_ms / before_ms - 1),
    )


def as_it_runs(server: OwnedServer, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options and the knobs that the server derived from them. Its rates were probed at another moment."""
    knobs = {
        name.partition(".")[2]: value for name, value in ask_config(server).items() if name.startswith("scheduling.")
    }
    return {**{name: value for name, value in knobs.items() if value is not None}, **options}


def measure_all(how: argparse.Namespace, out: Path) -> None:
    options = {"model": how.model, **OPTIONS}
    timed, journal = time_steps(options, out), out / JOURNAL
    flags = ("--no-access-log", "--journal", str(journal))
    with OwnedServer(Launch(argv=paceline_argv(options, flags), url=""), out / "server.log") as server:
        server.wait_ready()
        size = measure_size(asyncio.run(probe(server.url)))

        def spec_of(name: str, load: float) -> WorkloadSpec:
            (spec,) = named(name, msgspec.structs.replace(size, load=load), num_requests=how.requests)
            return scale(spec)

        loads = [spec_of(name, how.loads[-1]) for name in how.learn.split(",")]
        prices = learn_prices(server, timed, journal, loads, seed=how.seed + 1, out=out)
        sitting = Sitting(options=as_it_runs(server, options), seed=how.seed, learnt_ms=prices.probe_ms)
        for name in how.cells.split(","):
            for load in how.loads:
                spec = spec_of(name, load)
                folders = [f"{name}/{load:g}/{attempt}" for attempt in range(2)]
                runs = tuple(measure_once(server, spec, out, folder, how.seed) for folder in folders)
                sitting.cells.append(MeasuredCell(name=name, load=load, runs=runs))
                (out / SITTING).write_bytes(msgspec.json.encode(sitting))
                print(f"measured {name} at {load:g}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Cell:
    simulated: dict[str, float]
    at_speed: dict[str, float]
    again: dict[str, float]


def judged(
    cell: MeasuredCell, sitting: Sitting, engine: SimulatedEngine, steps: Sequence[ServedStep], out: Path
) -> Cell:
    """`engine`: with the prices that were learnt."""
    first, second = sorted(cell.runs, key=lambda run: run.drift)
    stored, other = read_run(out / first.folder), read_run(out / second.folder)
    real = (stored.info, stored.records)
    cost = engine.cost
    assert isinstance(cost, StepCost)
    began, ended = first.between_s
    own = [step for step in steps if began <= step.at_s <= ended]
    speed = math.fsum(step.ms for step in own) / math.fsum(cost.step_ms(step.shape) for step in own)
    found = []
    for factor in (first.probe_ms / sitting.learnt_ms, speed):
        made = simulate(replace(engine, cost=cost.times(factor)), load_spec(stored.info.spec), seed=sitting.seed)
        found.append(errors(real, (made.info, made.records)))
    return Cell(*found, again=errors(real, (other.info, other.records)))


def report(out: Path) -> None:
    sitting = msgspec.json.decode((out / SITTING).read_bytes(), type=Sitting)
    engine = simulated_engine(load_config(flags=sitting.options), calibration=out / "served.json")
    steps = list(served_steps(out / JOURNAL, restore))
    print("apart from a first measurement: simulated, simulated at the cell's own speed, measured again")
    print(f"{'cell':14} {'load':>5}  " + "  ".join(f"{name:>17}" for name in (*FIGURES, EACH)) + "   drift")
    cells = []
    for cell in sitting.cells:
        cells.append(judged(cell, sitting, engine, steps, out))
        drift = min(run.drift for run in cell.runs)
        moved = f"{drift:>6.1%}{'!' if drift > MOST_DRIFT else ''}"
        print(f"{cell.name:14} {cell.load:>5g}  {shown(cells[-1])}  {moved}", flush=True)
    whole = Cell(*(medians([getattr(cell, side) for cell in cells]) for side in ("simulated", "at_speed", "again")))
    print(f"{'median':14} {'':>5}  {shown(whole)}")
    print(f"{'goal':14} {'':>5}  " + "  ".join(f"{goal:>5.0%} {'':>11}" for _, _, goal in FIGURES.values()))


def shown(cell: Cell) -> str:
    return "  ".join(
        f"{cell.simulated[key]:>5.1%} {cell.at_speed[key]:>5.1%} {cell.again[key]:>5.1%}" for key in (*FIGURES, EACH)
    )


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows if not math.isnan(row[key])) for key in (*FIGURES, EACH)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--learn", default=LEARN, help="cells that prices are learnt from")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.4, 0.7], help="of the estimated capacity")
    parser.add_argument("--requests", type=int, default=40, help="of a cell, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", type=Path, help="simulate what an earlier sitting measured")
    how = parser.parse_args()
    out = how.again or how.out or Path(tempfile.mkdtemp(prefix="fidelity-"))
    if how.again is None:
        out.mkdir(parents=True, exist_ok=True)
        measure_all(how, out)
    report(out)
    print(f"load average {os.getloadavg()[0]:.1f}; records in {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
