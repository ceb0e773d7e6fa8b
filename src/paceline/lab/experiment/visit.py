"""A visit: one node's server, started anew, and the points measured while it runs."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import LabError
from paceline.lab.experiment.arms import read_key
from paceline.lab.experiment.counts import Counts
from paceline.lab.experiment.energy import Meter
from paceline.lab.experiment.energy_sources import EnergySource, find_sources
from paceline.lab.experiment.fingerprint import fingerprint
from paceline.lab.experiment.judge_point import failed_point, point_result
from paceline.lab.experiment.measure import MeasureOptions, measure
from paceline.lab.experiment.nodes import NodeStarter, Ready
from paceline.lab.experiment.process import OwnedServer
from paceline.lab.experiment.quality import score_node
from paceline.lab.experiment.reporter import Reporter
from paceline.lab.experiment.results import NodeResult, PointResult, StartResult
from paceline.lab.experiment.schedule import Point
from paceline.lab.experiment.spec import Loaded
from paceline.lab.experiment.store import NODES, fresh
from paceline.lab.load import Calibration, LoadOptions, Target, calibrate_client, probe
from paceline.lab.workload import WorkloadSpec, offered_rps, scale

MeasureOne = Callable[[Point, int, int | None], PointResult]  # point, place in the sequence, of how many
"""Measures a point. It gives a result whatever happens: a point that fails is a result, too."""


class Visitor:
    """Visits the nodes of one experiment."""

    def __init__(
        self,
        loaded: Loaded,
        folder: Path,
        starter: NodeStarter,
        workload: WorkloadSpec,
        reporter: Reporter,
        on_start: Callable[[str, StartResult], None],
        stop: threading.Event,
    ) -> None:
        """`on_start`: is told each start of a node's server."""
        self._spec = loaded.spec
        self._loaded = loaded
        self._folder = folder
        self._starter = starter
        self.workload = workload
        self._reporter = reporter
        self._on_start = on_start
        self._stop = stop
        self._sources = self._energy()
        self._idle: dict[str, float | None] = {}
        self._calibration: Calibration | None = None
        self._counts: dict[str, Counts] = {}
        self._fingerprint: dict[str, Any] = {}
        self._num_tries: Counter[str] = Counter()  # of a point, in this run of the command
        self._not_scored: set[str] = set()  # nodes whose quality could not be had

    def fingerprint(self, base: Ready, model: dict[str, Any] | None) -> dict[str, Any]:
        """Taken once: all points of an experiment are measured here. `model`: what is known of its files already."""
        if not self._fingerprint:
            weights = base.weights[0] if base.weights else None
            found = fingerprint("http://127.0.0.1", server=base.result.facts, model_path=weights)
            self._fingerprint = {"model": model, **found} if model else found
        return self._fingerprint

    @contextmanager
    def at(self, node: NodeResult) -> Iterator[MeasureOne]:
        """Starts the node's server for a while. Where it does not start, every point says so."""
        self._reporter.node(node.name, "starting")
        with ExitStack() as stack:
            try:
                server, start = stack.enter_context(self._starter.started(node))
                self._on_start(node.name, start)
                target = asyncio.run(probe(server.url, api_key=read_key(self._spec.server, self._loaded.folder)))
                self._measure_idle(node)
                self._score(node, target)
            except LabError as error:
                why, tail = str(error), self._starter.last_log_tail()
                yield lambda point, place, _total: failed_point(point, order=place, reason=why, tail=tail or (why,))
                return
            yield lambda point, place, total: self._measure(node, server, target, start, point, place, total)

    def _measure(
        self,
        node: NodeResult,
        server: OwnedServer,
        target: Target,
        start: StartResult,
        point: Point,
        place: int,
        total: int | None,
    ) -> PointResult:
        self._reporter.point_begins(point, place + 1, total)
        began = time.monotonic()
        folder = fresh(self._folder / NODES / Path(point.id))
        try:
            run = measure(
                target,
                self.workload,
                seed=point.seed,
                salt=self._salt(point),
                rate=point.rate_rps,
                out=folder,
                options=self._options(node, start, point, target),
                on_progress=self._reporter.progress,
                stop=self._stop,
            )
        except LabError as error:
            why = str(error)
            tail = () if server.alive else tuple(server.log_tail()) or (why,)
            return failed_point(point, order=place, reason=why, tail=tail, wall_s=time.monotonic() - began)
        dead = "" if server.alive else f"the server ended during the load, with status {server.stop()}"
        return point_result(
            point,
            run,
            folder=self._folder,
            order=place,
            wall_s=time.monotonic() - began,
            dead=dead,
            tail=tuple(server.log_tail()),
        )

    def _options(self, node: NodeResult, start: StartResult, point: Point, target: Target) -> MeasureOptions:
        return MeasureOptions(
            name=f"{self._spec.experiment.name}: {point.id}",
            question=self._spec.experiment.question,
            calibration=self._calibrate(point),
            counts=self._counts.setdefault(target.info.model, Counts()),
            energy=tuple(self._sources),
            idle_watts=self._idle.get(node.name),
            config=node.config,
            config_source=node.config_source,
            start=msgspec.to_builtins(start),
            fingerprint={**self._fingerprint, "server": node.facts},
        )

    def _salt(self, point: Point) -> str:
        """The same for all nodes, so that they are asked the same words; another for each rate and repeat, and for a
        point that is tried again, so that one point's cache is no help to the next."""
        words = f"{self._loaded.sha256} {point.purpose} {point.repeat} {point.rate_rps}"
        if tries := self._num_tries[point.id]:
            words += f" try {tries}"
        self._num_tries[point.id] += 1
        return hashlib.sha256(words.encode()).hexdigest()[:16] if "salt" in self.workload.cache.protocol else ""

    def _calibrate(self, point: Point) -> Calibration | None:
        """Once for each rate above those that were calibrated for."""
        rate = offered_rps(scale(self.workload, rate=point.rate_rps))
        if rate <= 0:
            return None
        if self._calibration is None or self._calibration.offered_rps < rate:
            self._calibration = calibrate_client(rate, options=LoadOptions())
        return self._calibration

    def _score(self, node: NodeResult, target: Target) -> None:
        """Before the points, which are measured without it. A quality that cannot be had is for its gate to say."""
        if node.name in self._not_scored:
            return
        rates = self._spec.rates_asked
        load = scale(self.workload, rate=min(rates) if rates else None)
        try:
            score_node(
                self._folder,
                self._loaded,
                node.name,
                target,
                load,
                lambda words: self._reporter.node(node.name, words),
                self._stop,
            )
        except LabError as error:
            self._not_scored.add(node.name)
            self._reporter.node(node.name, f"quality not measured: {error}")

    def _energy(self) -> list[EnergySource]:
        energy = self._spec.energy
        return [] if energy.off else find_sources(energy.command, energy.unit)

    def _measure_idle(self, node: NodeResult) -> None:
        if self._sources and node.name not in self._idle and self._spec.energy.idle_s > 0:
            self._idle[node.name] = Meter(self._sources).measure_idle(self._spec.energy.idle_s)
