"""How near the simulator is to this machine: matrix cells measured on a real server and simulated, request by request.

    python benchmarks/sim/fidelity.py [--cells short-short,rag,burst] [--loads 0.4 0.7] [--requests 60] [--out DIR]
                                      [--learn short-short,long-short,short-long]

One sitting: steps are timed (`paceline calibrate`) and a server is started with a journal. The cells of `--learn` are
loaded first, and what they show goes into prices (`calibrate --served`): steps with the loop around them and a client
on the same cores, and what a request takes outside the engine. Then each other cell is loaded at shares of what the
machine could carry, and the same plan is simulated from those prices and, beside it, from the idle times.

A probe of single requests before and after each cell says whether the machine held still; a cell between which it
moved by more than 5 % is measured again, twice at most, and then marked. A machine that became slower since prices were
learnt is slower at everything: prices are multiplied by what the cell's probes took over what those beside learning
took, which tells nothing of the cell itself. Compared are, of one cell at one load: the median over its requests of
|simulated / measured - 1| for TPOT and end to end, and the two runs' TTFT p50 and p95. A measured TTFT includes client,
network and server.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import httpx
import msgspec
import numpy as np

from paceline.assemble.calibrate_served import calibrate_served
from paceline.assemble.sim import SimulatedEngine, simulate, simulated_engine
from paceline.cli.demo_predict import time_steps
from paceline.config import load_config
from paceline.contracts.artefact import RequestRecord, RunInfo
from paceline.cost import StepCost
from paceline.lab.experiment import Launch, OwnedServer, measure_size, paceline_argv
from paceline.lab.experiment.figures import samples_of
from paceline.lab.experiment.measure import measure
from paceline.lab.load import Target, probe
from paceline.lab.workload import WorkloadSpec, named, scale

# plain ones: those whose cancellations, timeouts or validity checks the simulator only plans are left out
CELLS = "prefix-high,prefix-low,rag,steady,burst,multi-turn,tenants"
LEARN = "short-short,long-short,short-long"
GOALS = {"tpot": 0.08, "e2e": 0.08, "ttft p50": 0.15, "ttft p95": 0.25}
MOST_DRIFT, MOST_TRIES = 0.05, 3
OPTIONS = {"max_num_seqs": 8, "max_model_len": 2048, "max_wait_ms": 0.0}


@dataclass(frozen=True)
class Learnt:
    """An engine to simulate, and what the probe took when its prices were learnt (None: they are taken as they are)."""

    engine: SimulatedEngine
    probe_ms: float | None

    def at(self, probe_ms: float) -> SimulatedEngine:
        cost = self.engine.cost
        if self.probe_ms is None or not isinstance(cost, StepCost):
            return self.engine
        return replace(self.engine, cost=cost.times(probe_ms / self.probe_ms))


Run: TypeAlias = tuple[RunInfo, Sequence[RequestRecord]]


def figures(measured: Run, simulated: Run) -> dict[str, float]:
    """Relative errors by name of GOALS; NaN where one side has no value."""
    (ids, real), (others, made) = samples_of(*measured), samples_of(*simulated)
    place = {id_: at for at, id_ in enumerate(others)}
    pairs = [(at, place[id_]) for at, id_ in enumerate(ids) if id_ in place]
    found = {}
    for name in ("tpot", "e2e"):
        off = [made[f"{name}_p50_s"][j] / real[f"{name}_p50_s"][i] - 1 for i, j in pairs]
        finite = [abs(x) for x in off if math.isfinite(x)]
        found[name] = statistics.median(finite) if finite else math.nan
    for name, share in (("ttft p50", 0.5), ("ttft p95", 0.95)):
        a, b = (float(np.nanquantile(samples["ttft_p50_s"], share, method="higher")) for samples in (real, made))
        found[name] = abs(b / a - 1)
    return found


def one_cell(
    server: OwnedServer, spec: WorkloadSpec, engines: Sequence[Learnt], folder: Path, seed: int
) -> tuple[list[dict[str, float]], float]:
    """(errors of each engine, how far the machine moved) of one cell at one rate."""
    for attempt in range(MOST_TRIES):
        before = asyncio.run(probed(server))
        run = measure(before[0], spec, seed=seed, out=folder / f"{attempt}")
        after = asyncio.run(probed(server))
        drift = abs(after[1] / before[1] - 1)
        if drift <= MOST_DRIFT:
            break
    found = []
    for engine in engines:
        simulated = simulate(engine.at((before[1] + after[1]) / 2), spec, seed=seed)
        found.append(figures((run.info, run.records), (simulated.info, simulated.records)))
    return found, drift


async def probed(server: OwnedServer) -> tuple[Target, float]:
    """The target, and ms of an answer of 32 tokens when nobody else asks: the median of five."""
    target = await probe(server.url)
    body = {"model": target.info.model, "prompt": [7] * 64, "max_tokens": 32, "ignore_eos": True, "temperature": 0}
    took = []
    async with httpx.AsyncClient(timeout=120) as client:
        for _ in range(5):
            begun = time.perf_counter()
            (await client.post(f"{server.url}/v1/completions", json=body)).raise_for_status()
            took.append(1e3 * (time.perf_counter() - begun))
    return target, statistics.median(took)


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows if not math.isnan(row[key])) for key in GOALS}


def shown(found: dict[str, float]) -> str:
    return "  ".join(f"{found[key]:>9.1%}" for key in GOALS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--learn", default=LEARN, help="cells that prices are learnt from")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.4, 0.7], help="of the estimated capacity")
    parser.add_argument("--requests", type=int, default=60, help="of a cell, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    how = parser.parse_args()
    out = how.out or Path(tempfile.mkdtemp(prefix="fidelity-"))
    out.mkdir(parents=True, exist_ok=True)
    options = {"model": how.model, **OPTIONS}
    timed, journal = time_steps(options, out), out / "server.journal"
    flags = ("--no-access-log", "--journal", str(journal))
    rows: list[dict[str, float]] = []
    idle: list[dict[str, float]] = []
    with OwnedServer(Launch(argv=paceline_argv(options, flags), url=""), out / "server.log") as server:
        server.wait_ready()
        size = measure_size(asyncio.run(probe(server.url)))

        def spec_of(name: str, load: float) -> WorkloadSpec:
            (spec,) = named(name, msgspec.structs.replace(size, load=load), num_requests=how.requests)
            return scale(spec)

        runs, probes = [], []
        for name in how.learn.split(","):
            for load in how.loads:
                runs.append(out / "learn" / name / f"{load:g}")
                target, took = asyncio.run(probed(server))
                measure(target, spec_of(name, load), seed=how.seed + 1, out=runs[-1])
                probes += [took, asyncio.run(probed(server))[1]]
        served = calibrate_served(timed, [journal], runs, out=out / "served.json")
        print(f"learnt from {served.served} steps; {served.request_ms:.1f} ms a request outside the engine")
        print(
            f"{'cell':14} {'load':>5}  " + "  ".join(f"{name:>9}" for name in GOALS) + "   drift   idle times",
            flush=True,
        )
        config = load_config(flags=dict(options))
        engines = [
            Learnt(simulated_engine(config, calibration=out / "served.json"), statistics.mean(probes)),
            Learnt(simulated_engine(config, calibration=timed), None),
        ]
        for name in how.cells.split(","):
            for load in how.loads:
                (found, from_idle), drift = one_cell(
                    server, spec_of(name, load), engines, out / name / f"{load:g}", how.seed
                )
                rows.append(found)
                idle.append(from_idle)
                moved = f"{drift:>6.1%}{'!' if drift > MOST_DRIFT else ' '}"
                print(f"{name:14} {load:>5g}  {shown(found)}  {moved}   {shown(from_idle)}", flush=True)
    print(f"{'median':14} {'':>5}  {shown(medians(rows))}            {shown(medians(idle))}")
    print(f"{'goal':14} {'':>5}  " + "  ".join(f"{goal:>9.0%}" for goal in GOALS.values()))
    print(f"load average {os.getloadavg()[0]:.1f}; records in {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
