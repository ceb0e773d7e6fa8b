"""Gets each node ready before anything is measured: one start each, which settles what it really runs with.

Nodes are taken parents first. A start gives the resolved configuration, the cold start, and the values to pin; then the
edge is checked against the parent. A node that breaks the rule of one group ends the experiment before any load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from paceline.lab.experiment.arms import launch_of, serve_command, weight_paths
from paceline.lab.experiment.diff import (
    Options,
    Resolved,
    check_edge,
    check_names,
    declared,
    differences,
    flat,
    pins,
    resolved,
)
from paceline.lab.experiment.groups import DECLARED, canonical, plain
from paceline.lab.experiment.page_cache import drop, model_files
from paceline.lab.experiment.process import OwnedServer
from paceline.lab.experiment.results import NodeResult, OptionChange, StartResult
from paceline.lab.experiment.spec import BASE, ExperimentSpec, Loaded

FACTS = (
    "model",
    "family",
    "weight_dtype",
    "num_parameters",
    "dtype",
    "num_blocks",
    "block_size",
    "max_model_len",
    "vocab_size",
    "device",
    "notes",
)
Say = Callable[[str, str], None]  # node, words


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was started once."""

    result: NodeResult
    weights: tuple[Path, ...] = ()

    @property
    def options(self) -> Options:
        """As it runs. What was pinned counts as derived: the spec did not ask for it."""
        pinned = {plain(name) for name in self.result.pinned}
        return {
            name: Resolved(value=value, group=self.result.groups[name], derived=plain(name) in pinned)
            for name, value in self.result.config.items()
        }


class NodeStarter:
    """Starts nodes of one experiment."""

    def __init__(
        self, loaded: Loaded, folder: Path, known: Mapping[str, str], say: Say, stop: threading.Event | None = None
    ) -> None:
        self.spec: ExperimentSpec = loaded.spec
        self._loaded = loaded
        self._folder = folder
        # paceline's own table comes last where the server is another one: equal names may mean other things there
        self._known = known if loaded.spec.server.kind == "paceline" else {**known, **DECLARED}
        self._say = say
        self._stop = stop
        self._num_starts: dict[str, int] = {}
        self._last: OwnedServer | None = None

    def check_names(self) -> None:
        """Before anything starts: every option's declared group is its edge's."""
        for name, node in self.spec.graph.items():
            check_names(name, canonical(node.group), node.change, self._known, self.spec.server.groups)
        if self.spec.server.kind == "command":
            for name in flat(self.spec.server.base):
                declared({name: None}, self._known, self.spec.server.groups)

    def settle(self, name: str, parent: Ready | None) -> Ready:
        """Starts a node as often as [start] asks for cold ones, once at least. Raises ConfigError for an edge that
        changes more than its group, LabError when it does not start (StoppedError when told to stop)."""
        spec = self.spec
        group = None if name == BASE else canonical(spec.graph[name].group)
        options = spec.options_of(name)
        pinned = {} if parent is None else pins(parent.options, group, flat(options), spec.server.pin)
        if spec.server.kind != "paceline":
            pinned = {}
        first = NodeResult(
            name=name,
            parent=None if parent is None else parent.result.name,
            group=group,
            change={} if name == BASE else spec.graph[name].change,
            options=options,
            pinned=pinned,
        )
        weights = weight_paths(spec.server, options, {}, self._loaded.folder)
        starts: list[StartResult] = []
        report: dict[str, Any] = {}
        num_dropped = 0
        while True:
            cold = model_files(weights) if spec.start.cold else []
            num_dropped += bool(cold)
            with self.started(first, cold) as (server, start):
                starts.append(start)
                report = report or ask_config(server)
            weights = weights or weight_paths(spec.server, options, report, self._loaded.folder)
            if num_dropped >= spec.start.cold or not model_files(weights):
                return self._settled(first, starts, report, parent, weights)

    def _settled(
        self,
        first: NodeResult,
        starts: list[StartResult],
        report: dict[str, Any],
        parent: Ready | None,
        weights: list[Path],
    ) -> Ready:
        spec = self.spec
        told = bool(report.get("options"))
        options = resolved(report) if told else declared(first.options, self._known, spec.server.groups)
        if parent is not None:
            assert first.group is not None, "only the base has none"
            check_edge(first.name, first.group, differences(parent.options, options, flat(first.change)))
        pinned = {**first.pinned}
        if told and spec.server.kind == "paceline":
            pinned |= pins(options, None, [*flat(first.options), *pinned], spec.server.pin)
        result = msgspec.structs.replace(
            first,
            pinned=pinned,
            command=launch_of(spec.server, first.options, pinned, self._loaded.folder).argv,
            serve=serve_command(spec.server, first.options, pinned),
            config={name: option.value for name, option in options.items()},
            groups={name: option.group for name, option in options.items()},
            config_source="resolved" if told else "declared",
            facts={name: report[name] for name in FACTS if report.get(name)},
            starts=tuple(starts),
        )
        return Ready(result=result, weights=tuple(weights))

    def last_log_tail(self) -> tuple[str, ...]:
        """Of the server that was started last."""
        return tuple(self._last.log_tail()) if self._last is not None else ()

    @contextmanager
    def started(self, node: NodeResult, cold: Sequence[Path] = ()) -> Iterator[tuple[OwnedServer, StartResult]]:
        """A ready server of this node, and how its start went; ended on the way out. `cold`: files whose pages are
        dropped first. Raises LabError when it does not start, StoppedError when told to stop."""
        number = self._num_starts.get(node.name, 0)
        while (log := self._folder / "starts" / f"{node.name}-{number}.log").exists():
            number += 1
        self._num_starts[node.name] = number + 1
        dropped = drop(cold) if cold else None
        kind = "cold" if dropped and dropped.is_cold else "warm" if number else "as found"
        launch = launch_of(self.spec.server, node.options, node.pinned, self._loaded.folder)
        self._last = OwnedServer(launch, log)
        with self._last as server:
            phases = server.wait_ready(lambda words: self._say(node.name, words), self._stop)
            yield (
                server,
                StartResult(
                    kind=kind,
                    port_open_s=phases.port_open_s,
                    listed_s=phases.listed_s,
                    ready_s=phases.ready_s,
                    first_token_s=phases.first_token_s,
                    phases=phases.server,
                    dropped=dropped.sentence if dropped else "",
                    log=str(log.relative_to(self._folder)),
                ),
            )


def ask_config(server: OwnedServer) -> dict[str, Any]:
    """What a paceline server says of itself; {} from any other."""
    try:
        answer = httpx.get(f"{server.url}/v1/internal/config", headers=server.headers, timeout=10.0, trust_env=False)
        body = answer.json() if answer.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def edge_changes(parent: NodeResult, child: NodeResult) -> list[OptionChange]:
    """What really differs between two settled nodes."""
    return differences(Ready(result=parent).options, Ready(result=child).options, flat(child.change))
