"""Prices of steps as this machine serves them: idle times, then what a server's journal shows under a few loads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.assemble.calibrate_served import calibrate_served
from paceline.cost import Calibration
from paceline.lab.experiment import OwnedServer
from paceline.lab.experiment.measure import measure
from paceline.lab.load import probe
from paceline.lab.workload import WorkloadSpec

LEARN = "short-short,long-short,short-long"
SERVED = "served.json"


def learn_prices(
    server: OwnedServer,
    timed: Path,
    journal: Path,
    loads: Sequence[WorkloadSpec],
    *,
    seed: int,
    out: Path,
    between: Callable[[], object] = lambda: None,
) -> Calibration:
    """The calibration `timed` with the steps of a server that writes `journal`, each load measured once. `between` is
    called before the first and after each. Runs lie in `out/learn`, prices in `out/served.json`."""
    target = asyncio.run(probe(server.url))
    between()
    runs = [out / "learn" / str(at) for at in range(len(loads))]
    for run, spec in zip(runs, loads, strict=True):
        measure(target, spec, seed=seed, out=run)
        between()
    return calibrate_served(timed, [journal], runs, out=out / SERVED)
