"""The spec of an experiment: one TOML file, read strictly. Its form is described in docs/guides/tuning.md.

experiment   name, question, repeats, order, seed, ...
server       how servers are started, and the options every node shares
graph        node -> parent, the one group the edge changes, and the change
rates        the rates every node is measured at, or [search] for the highest one within the SLO
start energy quality gates                                     what else is measured and judged
slo stream cache ... or workload = "file or name"              the workload, see docs/reference/workload-spec.md
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from paceline.errors import ConfigError
from paceline.lab.experiment.groups import canonical
from paceline.lab.experiment.rate_search import Search, check_search
from paceline.lab.experiment.results import FIGURES

BASE = "base"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class General(_Strict, frozen=True, kw_only=True):
    name: str = "experiment"
    question: str = ""
    repeats: int = 2  # of each node at each rate; even numbers balance ABBA
    order: Literal["ABBA", "AB", "random"] = "ABBA"
    seed: int = 0
    max_minutes: float | None = None  # no point begins later; what is there is judged
    margin: float = 0.03  # ratios within 1 +- margin are the same
    decides: str = "goodput_rps"  # figure that chooses the best node


class Server(_Strict, frozen=True, kw_only=True):
    kind: Literal["paceline", "command"] = "paceline"
    base: dict[str, Any] = {}  # options of the root node; a table `env` sets environment variables
    argv: tuple[str, ...] = ()  # command: {port}, {host} and {name of an option} are filled in, the rest appended
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = "http://{host}:{port}"
    api_key_file: str | None = None
    groups: dict[str, str] = {}  # option -> group, where the lab does not know it
    pin: Literal["others", "all", "none"] = "others"
    model_files: tuple[str, ...] = ()  # dropped from the page cache for a cold start; "": what can be found
    ready_timeout_s: float = 600.0
    stop_s: float = 45.0


class Node(_Strict, frozen=True, kw_only=True):
    group: str
    change: dict[str, Any]
    parent: str = BASE
    note: str = ""


class Starts(_Strict, frozen=True, kw_only=True):
    cold: int = 1  # per node; the first start is one of them
    warm: int = 1  # at least; every visit is one


class Energy(_Strict, frozen=True, kw_only=True):
    command: tuple[str, ...] = ()
    unit: Literal["J", "W"] = "J"
    idle_s: float = 1.0
    off: bool = False


class ExperimentSpec(_Strict, frozen=True, kw_only=True):
    experiment: General = General()
    server: Server = Server()
    graph: dict[str, Node] = {}
    rates: tuple[float, ...] = ()  # requests/s; () = the workload's own rate
    search: Search | None = None
    start: Starts = Starts()
    energy: Energy = Energy()
    quality: dict[str, Any] | None = None
    gates: dict[str, Any] | None = None
    workload: str | None = None  # a file beside the spec, or a name of the matrix; else it stands in the spec itself

    @property
    def rates_asked(self) -> tuple[float, ...]:
        """Rates that are known before anything is measured; () for the workload's own."""
        return (self.search.start_rps,) if self.search is not None else self.rates

    @property
    def nodes(self) -> tuple[str, ...]:
        """Parents before children, else in the order of the file."""
        found = [BASE]
        while len(found) <= len(self.graph):
            ready = [n for n, node in self.graph.items() if n not in found and node.parent in found]
            assert ready, "checked by load_experiment"
            found.append(ready[0])
        return tuple(found)

    def options_of(self, node: str) -> dict[str, Any]:
        """What the spec sets for a node: the changes of its ancestors, and its own, over base."""
        if node == BASE:
            return dict(self.server.base)
        own = self.graph[node]
        return merged(self.options_of(own.parent), own.change)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`; tables (env) are joined."""
    found = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = {**found[name], **value} if both else value
    return found


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A spec, the workload's part of the file as it stands, and a digest of all that decides what is measured."""

    spec: ExperimentSpec
    workload: dict[str, Any] | str  # a table, a path, or a name of the matrix
    sha256: str
    folder: Path


def load_experiment(source: Path | dict[str, Any], folder: Path | None = None) -> Loaded:
    """Reads and checks a spec. Raises ConfigError: unknown keys, graphs that are no tree, groups nobody knows."""
    if isinstance(source, Path):
        try:
            whole = tomllib.loads(source.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError("the spec cannot be read", seen=source, expected=str(error)) from None
        except ValueError as error:  # of TOML, or of UTF-8
            raise ConfigError(f"the spec is not TOML: {error}", seen=source) from None
        folder = source.parent
    else:
        whole = source
    folder = folder or Path.cwd()
    own = {k: v for k, v in whole.items() if k in ExperimentSpec.__struct_fields__}
    rest = {k: v for k, v in whole.items() if k not in own}
    spec = _convert(own)
    _check(spec, rest)
    workload: dict[str, Any] | str = spec.workload if spec.workload is not None else rest
    inputs: list[Any] = [whole]
    if isinstance(workload, str) and (folder / workload).is_file():
        workload = str(folder / workload)
        inputs.append(Path(workload).read_bytes().decode(errors="replace"))
    digest = hashlib.sha256(msgspec.json.encode(inputs, order="deterministic")).hexdigest()
    return Loaded(spec=spec, workload=workload, sha256=digest, folder=folder)


def _convert(own: dict[str, Any]) -> ExperimentSpec:
    try:
        return msgspec.convert(own, ExperimentSpec)
    except msgspec.ValidationError as error:
        words = str(error)
        unknown = re.search(r"unknown field `([^`]+)`", words)
        hint = ""
        if unknown:
            known = {f for s in (General, Server, Node, Search, Starts, Energy) for f in s.__struct_fields__}
            near = difflib.get_close_matches(unknown[1], sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else "see docs/guides/tuning.md"
        raise ConfigError(f"the spec is wrong: {words}", fix=hint) from None


def _check(spec: ExperimentSpec, rest: dict[str, Any]) -> None:
    general = spec.experiment
    if general.repeats < 1:
        raise ConfigError("an experiment has at least one repeat", seen=general.repeats)
    if not 0 <= general.margin < 1:
        raise ConfigError("the margin is a share", seen=general.margin, expected="0 to 1, 0.03 being three percent")
    if general.decides not in FIGURES or (general.decides == "max_rate_rps" and spec.search is None):
        near = difflib.get_close_matches(general.decides, list(FIGURES), n=1)
        raise ConfigError(
            "nodes are not compared by this figure",
            seen=general.decides,
            expected=", ".join(name for name in FIGURES if name != "max_rate_rps") + "; a [search] decides by its rate",
            fix=f"did you mean {near[0]}?" if near else "",
        )
    if spec.rates and spec.search:
        raise ConfigError("rates are either given or searched for", fix="leave out `rates` or [search]")
    if any(rate <= 0 for rate in spec.rates):
        raise ConfigError("a rate is above 0 requests/s", seen=list(spec.rates))
    if spec.search is not None:
        check_search(spec.search)
        if general.decides not in (General().decides, "max_rate_rps"):
            raise ConfigError("a [search] decides by its rate", seen=general.decides, fix="leave `decides` out")
    if spec.workload is not None and rest:
        raise ConfigError(
            "unknown keys, or a workload given twice",
            seen=", ".join(rest),
            fix='a spec has either workload = "..." or the workload\'s own tables',
        )
    if spec.workload is None and not rest:
        raise ConfigError(
            "the spec says nothing about the workload", fix='add [[stream]] tables or workload = "steady"'
        )
    if spec.server.kind == "command" and not spec.server.argv:
        raise ConfigError("a server of kind command needs its argv", fix='argv = ["llama-server", "--port", "{port}"]')
    if spec.server.kind == "paceline" and (spec.server.argv or spec.server.url != Server().url):
        raise ConfigError(
            "paceline's command line and URL are made by the lab", fix='leave out argv and url, or kind = "command"'
        )
    if spec.start.cold < 0 or spec.start.warm < 0:
        raise ConfigError("a number of starts is negative", seen=f"cold {spec.start.cold}, warm {spec.start.warm}")
    _check_graph(spec)


def _check_graph(spec: ExperimentSpec) -> None:
    for name, node in spec.graph.items():
        if not _NAME.fullmatch(name) or name == BASE:
            raise ConfigError("not a name for a node", seen=name, expected="letters, digits, - _ . ; and not base")
        canonical(node.group)
        if not node.change:
            raise ConfigError(f"the edge to {name} changes nothing", fix="change = { option = value }")
        if node.parent != BASE and node.parent not in spec.graph:
            near = difflib.get_close_matches(node.parent, [BASE, *spec.graph], n=1)
            raise ConfigError(
                f"the parent of {name} is not in the graph",
                seen=node.parent,
                fix=f"did you mean {near[0]}?" if near else "",
            )
        seen = [name]
        while seen[-1] != BASE:
            parent = spec.graph[seen[-1]].parent
            if parent in seen:
                raise ConfigError("the graph has a circle", seen=" -> ".join([*seen, parent]))
            seen.append(parent)
