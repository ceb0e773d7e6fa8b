"""Runs an experiment from spec to answer: settles its nodes, visits them in turns, judges, leaves `experiment.json`.

Everything that was measured is on disk before the next thing begins, so an interruption of any kind costs one point at
most. `run_experiment` again on the same folder goes on where it ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from paceline.contracts.artefact import Caution
from paceline.errors import LabError
from paceline.lab.experiment.conclude import conclude
from paceline.lab.experiment.nodes import NodeStarter, Ready
from paceline.lab.experiment.process import StoppedError
from paceline.lab.experiment.quality import (
    CHANGES_KV,
    divergence_path,
    measure_divergence,
    sets_of,
    texts_of,
)
from paceline.lab.experiment.rate_search import MAX_INVALID, NodeSearch, asked_share, replay
from paceline.lab.experiment.reporter import Reporter, Silent
from paceline.lab.experiment.results import (
    ExperimentResult,
    NodeResult,
    PointResult,
    StartResult,
    read_experiment,
    write_experiment,
)
from paceline.lab.experiment.schedule import Point, Visit, imbalance, points_of, search_point, visits
from paceline.lab.experiment.spec import BASE, Loaded
from paceline.lab.experiment.store import held, open_experiment
from paceline.lab.experiment.visit import Visitor
from paceline.lab.experiment.workload import given_workload, resolve_workload, stored_workload
from paceline.lab.gates import load_gate_spec
from paceline.lab.workload import scale, spec_to_dict


def run_experiment(
    loaded: Loaded,
    folder: Path,
    *,
    known_groups: Mapping[str, str] | None = None,
    reporter: Reporter | None = None,
    stop: threading.Event | None = None,
) -> ExperimentResult:
    """Runs it, or goes on with it, and returns what is then in `folder`/experiment.json.

    `known_groups`: option -> group of the server's own table, for the check before anything starts. `stop` set (by a
    Ctrl-C handler) ends it early with status partial. Raises ConfigError for a spec or graph that is wrong, or a folder
    of another spec; LabError when the base node's server cannot be started.
    """
    check_experiment(loaded, known_groups=known_groups)
    with held(folder):
        return _Experiment(loaded, folder, known_groups or {}, reporter or Silent(), stop or threading.Event()).run()


def check_experiment(loaded: Loaded, *, known_groups: Mapping[str, str] | None = None) -> None:
    """All that can be found wrong with a spec before anything starts. Raises ConfigError."""
    NodeStarter(loaded, Path(), known_groups or {}, Silent().node).check_names()
    sets_of(loaded)
    texts_of(loaded)
    workload = given_workload(loaded)
    if workload is not None:
        for rate in loaded.spec.rates_asked:
            scale(workload, rate=rate)
    if loaded.spec.gates is not None:
        load_gate_spec(loaded.spec.gates)


class _Experiment:
    def __init__(
        self, loaded: Loaded, folder: Path, known: Mapping[str, str], reporter: Reporter, stop: threading.Event
    ) -> None:
        self._loaded = loaded
        self._spec = loaded.spec
        self._folder = folder
        self._reporter = reporter
        self._stop = stop
        self._starter = NodeStarter(loaded, folder, known, reporter.node, stop)
        self._ready: dict[str, Ready] = {}
        self._failed: dict[str, str] = {}
        self._num_invalid: dict[str, int] = {}  # by node, of this run of the command
        self._began = time.monotonic()
        self._cut = False  # something that was to be measured was not, for want of time
        self.result = open_experiment(folder, loaded)

    def run(self) -> ExperimentResult:
        try:
            self._settle_all()
            visitor = self._visitor()
            if self._spec.search is None:
                self._compare(visitor)
            else:
                self._search(visitor)
            self._start_again()
            self._diverge()
        except StoppedError:  # told to stop while a server started, or while quality was scored
            self._cut = True
        self._save(conclude(self._folder, self.result, self._loaded, "partial" if self._cut else "complete"))
        return read_experiment(self._folder)

    # --- nodes

    def _settle_all(self) -> None:
        kept = {node.name: node for node in self.result.nodes if not node.failed}
        for name in self._spec.nodes:
            parent = None if name == BASE else self._ready.get(self._spec.graph[name].parent)
            if name in kept:
                self._ready[name] = Ready(result=kept[name])
            elif name == BASE or parent is not None:
                self._settle(name, parent)
            else:
                self._fail(name, f"its parent {self._spec.graph[name].parent} failed")

    def _settle(self, name: str, parent: Ready | None) -> None:
        self._reporter.node(name, "first start")
        try:
            self._ready[name] = ready = self._starter.settle(name, parent)
        except LabError as error:
            if name == BASE:
                raise
            self._fail(name, str(error))
            return
        self._put_node(ready.result)

    def _fail(self, name: str, why: str) -> None:
        """The others go on: a configuration that does not start is an answer, too."""
        self._failed[name] = why
        self._reporter.node(name, f"failed: {why}")
        spec = self._spec.graph[name]
        self._put_node(NodeResult(name=name, parent=spec.parent, group=spec.group, change=spec.change, failed=why))

    def _put_node(self, node: NodeResult) -> None:
        order = self._spec.nodes
        others = [n for n in self.result.nodes if n.name != node.name]
        nodes = tuple(sorted([*others, node], key=lambda n: order.index(n.name)))
        self._save(msgspec.structs.replace(self.result, nodes=nodes))

    # --- measuring

    def _visitor(self) -> Visitor:
        spec = stored_workload(self.result) or given_workload(self._loaded)
        if spec is None:
            with self._starter.started(self._ready[BASE].result) as (server, _):
                self._reporter.node(BASE, "sizing the workload")
                spec = resolve_workload(self._loaded, server)
        for rate in self._spec.rates_asked:  # a named workload is known only now
            scale(spec, rate=rate)
        visitor = Visitor(self._loaded, self._folder, self._starter, spec, self._reporter, self._put_start, self._stop)
        general = self._spec.experiment
        cautions = []
        if why := imbalance(general.repeats, general.order, len(self._ready)) if self._spec.search is None else "":
            cautions.append(Caution(code="unbalanced", sentence=why))
        self._save(
            msgspec.structs.replace(
                self.result,
                workload=spec_to_dict(spec),
                slo=tuple(spec.classes),
                fingerprint=visitor.fingerprint(self._ready[BASE], self.result.fingerprint.get("model")),
                cautions=tuple(cautions),
            )
        )
        return visitor

    def _diverge(self) -> None:
        """KL and top-1 along edges that may move them; parent and child run side by side for it, under no load."""
        texts = texts_of(self._loaded)
        for name, ready in self._ready.items():
            parent = ready.result.parent
            known = divergence_path(self._folder, name).exists()
            if not texts or parent is None or ready.result.group not in CHANGES_KV or known:
                continue
            if self._over():
                self._cut = True
                return
            self._reporter.node(name, f"KL against {parent} on {len(texts)} texts")
            try:
                with (
                    self._starter.started(self._ready[parent].result) as (reference, _),
                    self._starter.started(ready.result) as (candidate, _),
                ):
                    urls = reference.url, candidate.url
                    measure_divergence(self._folder, name, texts, urls, candidate.launch.api_key, self._stop)
            except LabError as error:  # its gate will say that it was not measured
                self._reporter.node(name, f"KL not measured: {error}")

    def _put_start(self, name: str, start: StartResult) -> None:
        node = self.result.node(name)
        self._put_node(msgspec.structs.replace(node, starts=(*node.starts, start)))

    def _start_again(self) -> None:
        """Until each node has as many warm starts as [start] asks for; visits were some of them."""
        for name in self._ready:
            while sum(s.kind == "warm" for s in self.result.node(name).starts) < self._spec.start.warm:
                if self._over():
                    self._cut = True
                    return
                self._reporter.node(name, "a warm start")
                try:
                    with self._starter.started(self.result.node(name)) as (_, start):
                        self._put_start(name, start)
                except LabError as error:
                    self._reporter.node(name, f"did not start: {error}")
                    break

    def _compare(self, visitor: Visitor) -> None:
        """The paired repeats."""
        general = self._spec.experiment
        planned = [
            (visit, points_of(visit, self._spec.rates, general.seed))
            for visit in visits(list(self._ready), general.repeats, general.order, general.seed)
        ]
        total = sum(len(points) for _, points in planned)
        for visit, points in planned:
            wanted = [point for point in points if not self._is_done(point)]
            self._measure(visitor, visit, wanted, total)

    def _search(self, visitor: Visitor) -> None:
        """Every node's search moves on by a few points in turn, so that the arms stay interleaved."""
        assert self._spec.search is not None
        per_visit = self._spec.search.points_per_visit
        for repeat in range(10_000):
            open_nodes = [name for name in self._ready if self._next_search(name) is not None]
            if not open_nodes:
                return
            for visit in visits(open_nodes, repeat + 1, self._spec.experiment.order, self._spec.experiment.seed):
                if visit.repeat != repeat:
                    continue
                if self._over():
                    self._cut = True
                    return
                self._search_some(visitor, visit, per_visit)

    def _search_some(self, visitor: Visitor, visit: Visit, count: int) -> None:
        with visitor.at(self._ready[visit.node].result) as measure_one:
            for _ in range(count):
                point = self._next_search(visit.node)
                if point is None or self._over():
                    return
                found = measure_one(point, len(self.result.points), None)
                self._put_point(found)
                if found.log_tail:  # the server is gone: the next visit starts another
                    return

    def _next_search(self, node: str) -> Point | None:
        if self._num_invalid.get(node, 0) >= MAX_INVALID:
            return None
        wanted = self.search_of(node).next()
        if wanted is None:
            return None
        rate, repeat = wanted
        return search_point(node, rate, repeat, self._spec.experiment.seed)

    def search_of(self, node: str) -> NodeSearch:
        assert self._spec.search is not None
        options = self._spec.search
        return replay(options, asked_share(self.result.slo, options), self.result.points_of(node))

    def _measure(self, visitor: Visitor, visit: Visit, points: list[Point], total: int) -> None:
        """All points of a visit. A server that dies is started again for those that are left."""
        while points and not self._over():
            with visitor.at(self._ready[visit.node].result) as measure_one:
                while points and not self._over():
                    found = measure_one(points.pop(0), len(self.result.points), total)
                    self._put_point(found)
                    if found.log_tail:
                        break
        self._cut = self._cut or bool(points)

    def _is_done(self, point: Point) -> bool:
        return any(p.id == point.id and p.status == "ok" for p in self.result.points)

    def _put_point(self, point: PointResult) -> None:
        self._reporter.point_ended(point)
        self._cut = self._cut or point.status == "partial"
        if point.status == "invalid":
            self._num_invalid[point.node] = self._num_invalid.get(point.node, 0) + 1
        others = [p for p in self.result.points if p.id != point.id]
        self._save(
            msgspec.structs.replace(
                self.result, points=(*others, point), measured_s=self.result.measured_s + point.wall_s
            )
        )

    def _save(self, result: ExperimentResult) -> None:
        self.result = result
        write_experiment(self._folder, result)

    def _over(self) -> bool:
        return self._stop.is_set() or self._out_of_time()

    def _out_of_time(self) -> bool:
        limit = self._spec.experiment.max_minutes
        return limit is not None and time.monotonic() - self._began > 60 * limit
