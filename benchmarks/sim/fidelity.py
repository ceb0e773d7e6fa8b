"""How near the simulator is to this machine: matrix cells measured on a real server and simulated, request by request.

    PYTHONPATH=. python benchmarks/sim/fidelity.py [--cells prefix-low,rag,burst] [--loads 0.4 0.7] [--requests 40]
                                                   [--learn short-short,long-short,short-long] [--out DIR]

One sitting: steps are timed (`paceline calibrate`) and a server is started with a journal. The cells of `--learn` are
loaded first, and what they show goes into prices (`calibrate --served`): steps with the loop around them and a client
on the same cores, and what a request takes outside the engine. Then each other cell is loaded at shares of what the
machine could carry, **twice with the same requests**. Before and after each of all these a *probe* is served: a few
seconds of the first learning load, with requests of its own. What its steps took over their prices says how fast the
machine is just then. Simulated is the same plan from those prices, when all has been measured; `--again DIR` simulates
once more what was measured then.

Of each figure three errors are printed:

    simulated   prices, of steps and of requests, are multiplied by what the probes around the cell say over what those
                around the learning cells do: a machine that became slower since is slower at everything
    at speed    the same with what the cell's own steps took over their prices: what is left when the machine's mean
                speed is known, so what the simulator itself gets wrong
    again       the first measurement and the second: how far anything can be foretold here

A cell is judged by its first measurement; by its second where the machine moved by more than 5 % around the first, and
less around the second. `!` marks those where it moved by more around both.

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
from benchmarks.sim.learning import LEARN, SERVED, learn_prices

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
PROBE_REQUESTS, PROBE_SEED = 20, 1000  # seeds nobody else asks with: no probe finds another's prompts in the cache
SITTING, JOURNAL = "sitting.json", "server.journal"
OPTIONS = {"max_num_seqs": 8, "max_model_len": 2048, "max_wait_ms": 0.0}


Run: TypeAlias = tuple[RunInfo, Sequence[RequestRecord]]
Between: TypeAlias = tuple[float, float]  # begin and end on the engine's clock


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


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of a cell, whose run lies in `folder` of the sitting."""

    folder: str
    between_s: Between
    probe: int  # the one before it; the next is the one after it


class MeasuredCell(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    load: float
    runs: tuple[MeasuredRun, MeasuredRun]


class Sitting(msgspec.Struct, kw_only=True):
    """What was measured, in `sitting.json`."""

    options: dict[str, Any]  # of the engine, knobs that it derived included
    seed: int
    probes: list[Between]
    num_learnt: int  # of the probes, those around the learning cells
    cells: list[MeasuredCell] = []


class Bench:
    """Measures on one server; a probe lies between any two measurements."""

    def __init__(self, server: OwnedServer, probed: WorkloadSpec, out: Path, seed: int) -> None:
        self._target = asyncio.run(probe(server.url))
        self._probed = probed
        self._out = out
        self._seed = seed
        self.probes: list[Between] = []

    def probe(self) -> None:
        number = len(self.probes)
        self.probes.append(self._measure(self._probed, f"probes/{number}", PROBE_SEED + number))

    def run(self, spec: WorkloadSpec, folder: str) -> MeasuredRun:
        before = len(self.probes) - 1
        between = self._measure(spec, folder, self._seed)
        self.probe()
        return MeasuredRun(folder=folder, between_s=between, probe=before)

    def _measure(self, spec: WorkloadSpec, folder: str, seed: int) -> Between:
        began = time.monotonic()
        measure(self._target, spec, seed=seed, out=self._out / folder)
        return began, time.monotonic()


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

        def spec_of(name: str, load: float, num_requests: int = how.requests) -> WorkloadSpec:
            (spec,) = named(name, msgspec.structs.replace(size, load=load), num_requests=num_requests)
            return scale(spec)

        names = how.learn.split(",")
        bench = Bench(server, spec_of(names[0], how.loads[-1], PROBE_REQUESTS), out, how.seed)
        loads = [spec_of(name, how.loads[-1]) for name in names]
        learn_prices(server, timed, journal, loads, seed=how.seed + 1, out=out, between=bench.probe)
        sitting = Sitting(
            options=as_it_runs(server, options), seed=how.seed, probes=bench.probes, num_learnt=len(bench.probes)
        )
        for name in how.cells.split(","):
            for load in how.loads:
                spec = spec_of(name, load)
                runs = bench.run(spec, f"{name}/{load:g}/0"), bench.run(spec, f"{name}/{load:g}/1")
                sitting.cells.append(MeasuredCell(name=name, load=load, runs=runs))
                (out / SITTING).write_bytes(msgspec.json.encode(sitting))
                print(f"measured {name} at {load:g}", file=sys.stderr, flush=True)


class Speeds:
    """What steps took over their prices: of the machine at a time, as far as probes tell."""

    def __init__(self, sitting: Sitting, steps: Sequence[ServedStep], cost: StepCost) -> None:
        self._steps = steps
        self._cost = cost
        probes = [self.during(between) for between in sitting.probes]
        learnt = statistics.mean(probes[: sitting.num_learnt])
        self._probes = [each / learnt for each in probes]

    def during(self, between: Between) -> float:
        own = [step for step in self._steps if between[0] <= step.at_s <= between[1]]
        return math.fsum(step.ms for step in own) / math.fsum(self._cost.step_ms(step.shape) for step in own)

    def around(self, run: MeasuredRun) -> float:
        return statistics.mean(self._probes[run.probe : run.probe + 2])

    def drift(self, run: MeasuredRun) -> float:
        return abs(self._probes[run.probe + 1] / self._probes[run.probe] - 1)


@dataclass(frozen=True)
class Cell:
    simulated: dict[str, float]
    at_speed: dict[str, float]
    again: dict[str, float]
    drift: float
    factors: tuple[float, float]  # by probes, by its own steps


def judged(cell: MeasuredCell, sitting: Sitting, engine: SimulatedEngine, speeds: Speeds, out: Path) -> Cell:
    """`engine`: with the prices that were learnt."""
    drifts = [speeds.drift(run) for run in cell.runs]
    at = int(drifts[0] > MOST_DRIFT and drifts[1] < drifts[0])
    run, stored = cell.runs[at], [read_run(out / each.folder) for each in cell.runs]
    real, again = ((each.info, each.records) for each in stored)
    assert isinstance(engine.cost, StepCost)
    factors = speeds.around(run), speeds.during(run.between_s)
    found = []
    for factor in factors:
        slower = replace(engine, cost=engine.cost.times(factor), request_ms=engine.request_ms * factor)
        spec = load_spec(stored[at].info.spec)
        made = simulate(slower, spec, seed=sitting.seed)
        found.append(errors((stored[at].info, stored[at].records), (made.info, made.records)))
    return Cell(*found, again=errors(real, again), drift=drifts[at], factors=factors)


def report(out: Path) -> None:
    sitting = msgspec.json.decode((out / SITTING).read_bytes(), type=Sitting)
    engine = simulated_engine(load_config(flags=sitting.options), calibration=out / SERVED)
    assert isinstance(engine.cost, StepCost)
    speeds = Speeds(sitting, list(served_steps(out / JOURNAL, restore)), engine.cost)
    print("apart from what was measured: simulated, simulated at the cell's own speed, measured again")
    heads = "  ".join(f"{name:>17}" for name in (*FIGURES, EACH))
    print(f"{'cell':14} {'load':>5}  {heads}   drift  speed by probes, by steps")
    cells = []
    for cell in sitting.cells:
        cells.append(found := judged(cell, sitting, engine, speeds, out))
        moved = f"{found.drift:>6.1%}{'!' if found.drift > MOST_DRIFT else ' '}"
        factors = "  ".join(f"{1 / factor:.2f}" for factor in found.factors)
        print(f"{cell.name:14} {cell.load:>5g}  {shown(found)}  {moved} {factors}", flush=True)
    sides = (medians([getattr(cell, side) for cell in cells]) for side in ("simulated", "at_speed", "again"))
    print(f"{'median':14} {'':>5}  {shown(Cell(*sides, drift=0.0, factors=(1.0, 1.0)))}")
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
