"""How near the simulator is to this machine: matrix cells measured on a real server and simulated, request by request.

    PYTHONPATH=. python benchmarks/sim/fidelity.py [--cells prefix-low,rag,burst] [--loads 0.4 0.7] [--requests 40]
                                                   [--learn short-short,long-short,short-long] [--out DIR]

One sitting: steps are timed (`paceline calibrate`) and a server is started with a journal. The cells of `--learn` are
loaded first, and what they show goes into prices (`calibrate --served`): steps with the loop around them and a client
on the same cores, and what a request takes outside the engine. Then each other cell is loaded at shares of what the
machine could carry, **twice with the same requests**, and the same plan is simulated from those prices.

How far the second measurement is from the first says how far anything can be foretold here: of each figure both errors
are printed, the simulation's and the second measurement's, each against the first. A cell's first measurement is the
one between whose probes (single requests before and after) the machine moved less; `!` marks more than 5 %. A machine
that became slower since prices were learnt is slower at everything: prices are multiplied by what the cell's probes
took over what those beside learning took, which tells nothing of the cell itself.

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
from paceline.cost import StepCost
from paceline.lab.experiment import Launch, OwnedServer, measure_size, paceline_argv
from paceline.lab.experiment.figures import samples_of
from paceline.lab.experiment.measure import measure
from paceline.lab.experiment.nodes import ask_config
from paceline.lab.load import probe
from paceline.lab.workload import WorkloadSpec, named, scale

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


@dataclass(frozen=True)
class Measured:
    run: Run
    probe_ms: float  # before and after it, the mean
    drift: float  # between the two


def measure_once(server: OwnedServer, spec: WorkloadSpec, folder: Path, seed: int) -> Measured:
    target, before_ms = asyncio.run(probed(server))
    run = measure(target, spec, seed=seed, out=folder)
    after_ms = asyncio.run(probed(server))[1]
    return Measured((run.info, run.records), (before_ms + after_ms) / 2, abs(after_ms / before_ms - 1))


@dataclass(frozen=True)
class Cell:
    simulated: dict[str, float]
    again: dict[str, float]  # the second measurement
    drift: float


def one_cell(
    server: OwnedServer, spec: WorkloadSpec, engine: SimulatedEngine, learnt_ms: float, folder: Path, seed: int
) -> Cell:
    """`engine`: with the prices that were learnt, while the probe took `learnt_ms`."""
    runs = [measure_once(server, spec, folder / f"{attempt}", seed) for attempt in range(2)]
    first, second = sorted(runs, key=lambda run: run.drift)
    assert isinstance(engine.cost, StepCost)
    today = replace(engine, cost=engine.cost.times(first.probe_ms / learnt_ms))
    simulated = simulate(today, spec, seed=seed)
    return Cell(
        errors(first.run, (simulated.info, simulated.records)), errors(first.run, second.run), drift=first.drift
    )


def as_it_runs(server: OwnedServer, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options and the knobs that the server derived from them. Its rates were probed at another moment."""
    knobs = {
        name.partition(".")[2]: value for name, value in ask_config(server).items() if name.startswith("scheduling.")
    }
    return {**{name: value for name, value in knobs.items() if value is not None}, **options}


def shown(simulated: dict[str, float], again: dict[str, float]) -> str:
    return "  ".join(f"{simulated[key]:>6.1%} {again[key]:>6.1%}" for key in (*FIGURES, EACH))


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
    how = parser.parse_args()
    out = how.out or Path(tempfile.mkdtemp(prefix="fidelity-"))
    out.mkdir(parents=True, exist_ok=True)
    options = {"model": how.model, **OPTIONS}
    timed, journal = time_steps(options, out), out / "server.journal"
    flags = ("--no-access-log", "--journal", str(journal))
    cells: list[Cell] = []
    with OwnedServer(Launch(argv=paceline_argv(options, flags), url=""), out / "server.log") as server:
        server.wait_ready()
        size = measure_size(asyncio.run(probe(server.url)))

        def spec_of(name: str, load: float) -> WorkloadSpec:
            (spec,) = named(name, msgspec.structs.replace(size, load=load), num_requests=how.requests)
            return scale(spec)

        loads = [spec_of(name, how.loads[-1]) for name in how.learn.split(",")]
        prices = learn_prices(server, timed, journal, loads, seed=how.seed + 1, out=out)
        served = prices.calibration
        print(f"learnt from {served.served} steps; {served.request_ms:.1f} ms a request outside the engine")
        print("apart from a first measurement: simulated, and measured a second time")
        print(f"{'cell':14} {'load':>5}  " + "  ".join(f"{name:>13}" for name in (*FIGURES, EACH)) + "   drift")
        engine = simulated_engine(load_config(flags=as_it_runs(server, options)), calibration=prices.file)
        for name in how.cells.split(","):
            for load in how.loads:
                folder = out / name / f"{load:g}"
                cell = one_cell(server, spec_of(name, load), engine, prices.probe_ms, folder, how.seed)
                cells.append(cell)
                moved = f"{cell.drift:>6.1%}{'!' if cell.drift > MOST_DRIFT else ''}"
                print(f"{name:14} {load:>5g}  {shown(cell.simulated, cell.again)}  {moved}", flush=True)
    whole = shown(medians([cell.simulated for cell in cells]), medians([cell.again for cell in cells]))
    print(f"{'median':14} {'':>5}  {whole}")
    print(f"{'goal':14} {'':>5}  " + "  ".join(f"{goal:>6.0%} {'':>6}" for _, _, goal in FIGURES.values()))
    print(f"load average {os.getloadavg()[0]:.1f}; records in {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
