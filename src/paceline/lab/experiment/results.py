"""What an experiment leaves behind: `experiment.json` in its folder. Renderers read it; `runner` writes it.

Layout of the folder:

    EXPERIMENT/
      experiment.json      an ExperimentResult: rewritten whole, and atomically, after each point
      spec.json            what it was started from, with its digest: a changed spec is not resumed
      nodes/NODE/REP.../   one run artefact for each point, see `paceline.lab.artefact`
      starts/NODE-N.log    log of each server that was started
      .lock                held while it runs
      quality/NODE/...     scores, and KL against the parent, where the spec asks for quality

Ratios are child over parent: 1.10 in `goodput_rps` is ten percent more. Every number with an interval is an `Estimate`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from paceline.contracts.artefact import Answer, Caution, Estimate, Verdict
from paceline.contracts.workload import SloClass

RESULT_FILE = "experiment.json"


class OptionChange(msgspec.Struct, frozen=True, kw_only=True):
    """One option that differs between two nodes."""

    name: str
    group: str
    before: Any = None
    after: Any = None
    asked: bool = True  # the edge names it; else the server derived it from what the edge names


class StartResult(msgspec.Struct, frozen=True, kw_only=True):
    """One start of an owned server. Seconds since the process was made."""

    kind: str  # cold: the model's files had left the page cache; warm: after an earlier start; as found: unknown
    port_open_s: float | None = None
    listed_s: float | None = None  # /v1/models names a model
    ready_s: float | None = None  # /ready or /health says yes
    first_token_s: float | None = None  # a request for one token came back
    phases: dict[str, float] = {}  # the server's own, where it tells them
    dropped: str = ""  # what was cold: which files' pages left the page cache, and what stayed
    log: str = ""  # file, relative to the experiment's folder


class PointResult(msgspec.Struct, frozen=True, kw_only=True):
    """One measured point: one node, one repeat, one rate."""

    id: str  # unique in the experiment: NODE/rep0, NODE/rep0-2rps, NODE/search3
    node: str
    repeat: int = 0
    order: int = 0  # place in the sequence in which points were measured
    rate_rps: float | None = None  # None: the spec's own rate, or a closed loop
    seed: int = 0  # equal seeds have equal plans: they pair the arms
    purpose: str = "compare"  # compare: part of the paired repeats; search: looks for the highest rate
    path: str = ""  # the run's folder, relative to the experiment's
    status: str = "ok"  # ok; partial: interrupted; invalid: says nothing about the server
    reason: str = ""  # why not ok
    log_tail: tuple[str, ...] = ()  # the server's last lines, where it died
    started: str = ""  # ISO 8601, UTC
    wall_s: float = 0.0
    num_requests: int = 0  # of the window, those that count: all but what the client itself gave up in time
    num_good: int = 0
    n_eff: float = 0.0  # independent ones among them
    window_s: float = 0.0
    figures: dict[str, Estimate] = {}  # see FIGURES
    cautions: tuple[Caution, ...] = ()


FIGURES: dict[str, tuple[str, bool]] = {
    # name -> (unit, more is better)
    "max_rate_rps": ("req/s", True),  # of a search: nodes and edges only
    "goodput_rps": ("req/s", True),
    "attainment": ("", True),
    "good_tokens_per_s": ("tokens/s", True),
    "output_tokens_per_s": ("tokens/s", True),
    "ttft_p50_s": ("s", False),
    "ttft_p95_s": ("s", False),
    "tpot_p50_s": ("s", False),
    "tpot_p95_s": ("s", False),
    "e2e_p50_s": ("s", False),
    "e2e_p95_s": ("s", False),
    "prefix_hit": ("", True),
    "joules_per_good_token": ("J", False),
}
"""Figures of points, nodes and edges. A figure that was not measured is absent."""


class RateLevel(msgspec.Struct, frozen=True, kw_only=True):
    """All points of one node at one rate, taken together."""

    rate_rps: float
    num_points: int
    num_requests: int
    num_good: int
    attainment: Estimate
    goodput_rps: Estimate
    holds: bool = False  # the measured share of good requests is at least what the SLO asks


class RateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate a node carries within its SLO: a bracket, and what was measured on the way."""

    share: float  # of requests that must be good
    answer: str = "open"  # bracketed; at least: no rate failed; none: none held; open: ended before it was sure
    highest_pass_rps: float | None = None  # highest rate that was measured to hold
    lowest_fail_rps: float | None = None  # lowest one above it that was measured not to
    max_rate_rps: Estimate = Estimate()  # where the fitted share crosses
    goodput_at_max_rps: Estimate = Estimate()  # at highest_pass_rps
    cliff: bool = False  # the share falls off between two neighbours: a small excess of load costs a lot
    sentence: str = ""
    levels: tuple[RateLevel, ...] = ()  # by rate


class NodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration."""

    name: str
    parent: str | None = None
    group: str | None = None  # of the edge from the parent
    change: dict[str, Any] = {}  # what the edge sets
    options: dict[str, Any] = {}  # everything the spec sets for this node, inherited included
    pinned: dict[str, Any] = {}  # values the server derived at its first start, held fixed from then on
    command: tuple[str, ...] = ()  # starts it for the lab
    serve: str = ""  # serves this node: one line, ready for a shell
    config: dict[str, Any] = {}  # resolved: option -> value; declared where the server does not tell
    groups: dict[str, str] = {}  # option -> group
    config_source: str = "unknown"  # resolved, declared, unknown
    facts: dict[str, Any] = {}  # what followed at start: number of KV blocks, device, dtype
    starts: tuple[StartResult, ...] = ()
    figures: dict[str, Estimate] = {}  # over the repeats, at the compared rate
    rate: RateResult | None = None
    quality: dict[str, Any] = {}  # set -> score and file
    failed: str = ""  # why it could not be measured at all


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Child over parent in one figure."""

    figure: str
    rate_rps: float | None = None  # measured there; None: over all rates, or the workload's own
    parent: float | None
    child: float | None
    ratio: Estimate  # unit "x"
    answer: str = "inconclusive"  # better, worse, same (within the margin), inconclusive, not measured
    sentence: str = ""


class EdgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of the graph did."""

    parent: str
    child: str
    group: str
    changes: tuple[OptionChange, ...] = ()
    ratios: tuple[Ratio, ...] = ()  # the deciding figure first
    answer: str = "inconclusive"  # better, worse, same, inconclusive, invalid
    sentence: str = ""
    verdict: Verdict = Verdict(answer=Answer.NOT_MEASURED, sentence="no gates were asked for")


class ExperimentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole experiment."""

    name: str
    version: int = 1  # of this form
    question: str = ""
    answer: str = ""  # one sentence
    status: str = "running"  # running, complete, partial
    created: str = ""  # ISO 8601, UTC
    spec_sha256: str = ""
    spec: dict[str, Any] = {}  # the experiment's own part
    workload: dict[str, Any] = {}  # resolved
    slo: tuple[SloClass, ...] = ()
    repeats: int = 1
    order: str = "ABBA"
    decides: str = "goodput_rps"  # the figure the best node is chosen by; or max_rate_rps
    margin: float = 0.03  # ratios within 1 +- margin are the same
    fingerprint: dict[str, Any] = {}
    nodes: tuple[NodeResult, ...] = ()  # parents before children
    points: tuple[PointResult, ...] = ()  # in the order they were measured
    edges: tuple[EdgeResult, ...] = ()
    best: str | None = None
    best_sentence: str = ""
    serve_command: str = ""  # ready for a shell
    cautions: tuple[Caution, ...] = ()
    measured_s: float = 0.0  # sum over the points

    def node(self, name: str) -> NodeResult:
        """Raises KeyError."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def points_of(self, node: str) -> tuple[PointResult, ...]:
        return tuple(p for p in self.points if p.node == node)


def write_experiment(folder: Path, result: ExperimentResult) -> Path:
    """Replaces `experiment.json` whole: a reader, a kill or a power cut never meets half of one."""
    path = folder / RESULT_FILE
    temporary = path.with_suffix(".json.new")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(result), indent=1))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def read_experiment(path: Path) -> ExperimentResult:
    """Of an experiment's folder, or the file itself. Raises LabError for anything else."""
    from paceline.errors import LabError

    file = path / RESULT_FILE if path.is_dir() else path
    try:
        return msgspec.json.decode(file.read_bytes(), type=ExperimentResult)
    except FileNotFoundError:
        raise LabError("there is no experiment here", seen=path, expected=f"a folder with {RESULT_FILE}") from None
    except msgspec.DecodeError as error:
        raise LabError(f"{RESULT_FILE} cannot be read: {error}", seen=file) from None
