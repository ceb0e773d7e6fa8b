"""Prices of steps as this machine serves them: idle times, then what a server's journal shows under a few loads."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from paceline.assemble.calibrate_served import calibrate_served
from paceline.cost import Calibration
from paceline.lab.experiment import OwnedServer
from paceline.lab.experiment.measure import measure
from paceline.lab.load import Target, probe
from paceline.lab.workload import WorkloadSpec

LEARN = "short-short,long-short,short-long"
PROBES = 10


@dataclass(frozen=True)
class Prices:
    """What was learnt, where it is stored, and what the probe took meanwhile."""

    calibration: Calibration
    file: Path
    probe_ms: float


def learn_prices(
    server: OwnedServer, timed: Path, journal: Path, loads: Sequence[WorkloadSpec], *, seed: int, out: Path
) -> Prices:
    """The calibration `timed` with the steps of a server that writes `journal`, each load measured once between two
    probes. Runs lie in `out/learn`, prices in `out/served.json`."""
    runs, probes = [], []
    for at, spec in enumerate(loads):
        runs.append(out / "learn" / str(at))
        target, took_ms = asyncio.run(probed(server))
        measure(target, spec, seed=seed, out=runs[-1])
        probes += [took_ms, asyncio.run(probed(server))[1]]
    file = out / "served.json"
    return Prices(calibrate_served(timed, [journal], runs, out=file), file, statistics.mean(probes))


async def probed(server: OwnedServer) -> tuple[Target, float]:
    """The target, and ms of an answer of 32 tokens when nobody else asks: the mean of a few, as a queue
    feels the mean of its steps and not the middle."""
    target = await probe(server.url)
    body = {"model": target.info.model, "prompt": [7] * 64, "max_tokens": 32, "ignore_eos": True, "temperature": 0}
    took = []
    async with httpx.AsyncClient(timeout=120) as client:
        for _ in range(PROBES):
            begun = time.perf_counter()
            (await client.post(f"{server.url}/v1/completions", json=body)).raise_for_status()
            took.append(1e3 * (time.perf_counter() - begun))
    return target, statistics.mean(took)
