"""The lint over what paceline has: a configuration, a server that runs, the folder of a run, matrix or experiment.

    lint_config(path, settings, beside)   a TOML file (or none), resolved for its model and a device
    lint_folder(path, beside)             a run, each run of a matrix, or an experiment with its runs
    lint_server(config, report, classes)  what a server that is up says of itself
    write_findings(folder, result)        lint.json beside a run, which its report shows

It gathers facts; rules are in `planner.lint`, which reads nothing. Loads torch only for a
configuration on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.assemble.lint.fleet import ALONE, Serving, serving_of
from paceline.assemble.lint.server import lint_server
from paceline.config import load_config
from paceline.contracts.lint import LintResult
from paceline.errors import LabError, PacelineError
from paceline.planner.lint import RULES, Facts, PairFacts, Rule, lint, rule_of

if TYPE_CHECKING:
    from paceline.lab.experiment.results import ExperimentResult

RUN, EXPERIMENT, MATRIX, LINT = "run.json", "experiment.json", "matrix.json", "lint.json"


@dataclass(frozen=True)
class Beside:
    """What a lint may be given beside its subject. Empty: nothing."""

    workload: str = ""  # name or file: what will be sent (a configuration)
    slo: str = ""  # targets instead of the workload's own (a configuration)
    rate: float | None = None  # requests/s, instead of the workload's own (a configuration)
    duration_s: float | None = None
    device: str = ""  # of the planner's table (a configuration); "" is this machine
    against: Path | None = None  # another configuration, or an earlier run
    trace: Path | None = None  # recorded arrivals of the service
    start_budget_s: float | None = None  # how long a scale-up may take
    client: Path | None = None  # an earlier run of the client that will send the workload (a configuration)
    serving: Serving = ALONE  # layout, replicas, router, drafts, tiers (a configuration)


def lint_config(
    path: Path | None, settings: Mapping[str, Any] | None = None, beside: Beside | None = None
) -> LintResult:
    """`settings`: options that win over the file. Raises what a start would: ConfigError, ModelError, ..."""
    from paceline.assemble.lint import configuration, load

    beside, settings = beside or Beside(), dict(settings or {})
    one = configuration.resolve(load_config(path, settings), beside.device, beside.serving)
    spec = None
    if beside.workload:
        found = load.find_workload(beside.workload, one.prices, one.engine.max_model_len)
        spec = load.adjusted(found, slo=beside.slo, rate=beside.rate, duration_s=beside.duration_s)
    pairs: tuple[PairFacts, ...] = ()
    name = str(path) if path is not None else f"{one.config.model.model} ({one.config.profile})"
    if beside.against is not None:
        other = configuration.resolve(load_config(beside.against), beside.device, beside.serving)
        changed = configuration.changes(other, one)  # nothing was measured
        pairs = (PairFacts(before=str(beside.against), after=name, changes=changed),)
    asked = None if spec is None else load.load_facts(spec)
    return lint(
        Facts(
            source="config",
            name=name,
            engine=one.engine,
            prices=one.prices,
            slo=load.slo_of(beside.slo, spec),
            load=asked,
            pairs=pairs,
            trace=None if beside.trace is None else load.trace_facts(beside.trace),
            start_budget_s=beside.start_budget_s,
            fleet=one.fleet(asked),
            device=one.device_facts(),
            client=None if beside.client is None else load.client_facts(beside.client),
        )
    )


def lint_folder(path: Path, beside: Beside | None = None) -> tuple[LintResult, ...]:
    """One result for a run; one for each run of a matrix; the experiment's first, then its nodes' runs. Raises LabError
    where there is none of them, or a file is broken."""
    beside = beside or Beside()
    if (path / EXPERIMENT).is_file():
        return _experiment(path, beside)
    if (path / RUN).is_file():
        return (_run(path, beside),)
    if (path / MATRIX).is_file():
        from paceline.lab.experiment.bench import read_matrix

        runs = [path / row.path for row in read_matrix(path).rows if row.path]
        return tuple(_run(run, beside) for run in runs if _within(run, path))
    expected = f"a folder with {RUN}, {EXPERIMENT} or {MATRIX}"
    raise LabError("there is nothing to lint here", seen=path, expected=expected)


def write_findings(folder: Path, result: LintResult) -> Path:
    """Whole or not at all."""
    file = folder / LINT
    fresh = file.with_name(file.name + ".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    os.replace(fresh, file)
    return file


def findings_by_node(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Of an experiment's folder: node -> (code, sentence), as its report shows them. Empty for any other folder. A
    node whose run cannot be read has one that says so, under the code "lint"."""
    if not (path / EXPERIMENT).is_file():
        return {}
    from paceline.assemble.lint import stored
    from paceline.lab.experiment.results import read_experiment

    found: dict[str, list[tuple[str, str]]] = {}
    result = read_experiment(path)
    for finding in lint(stored.experiment_facts(result)).findings:
        found.setdefault(finding.subject.rpartition(" -> ")[2], []).append((finding.code, finding.sentence))
    for node, run in _compared(path, result):
        try:
            said = [(f.code, f.sentence) for f in _run(run, Beside()).findings]
        except PacelineError as error:
            said = [("lint", f"The run was not looked at: {error.message}.")]
        found.setdefault(node, []).extend(said)
    return found


def _run(path: Path, beside: Beside) -> LintResult:
    from paceline.assemble.lint import load, stored
    from paceline.lab.artefact import read_run

    against = () if beside.against is None else (read_run(beside.against),)
    trace = None if beside.trace is None else load.trace_facts(beside.trace)
    budget = beside.start_budget_s
    return lint(stored.run_facts(read_run(path), against=against, trace=trace, start_budget_s=budget))


def _experiment(path: Path, beside: Beside) -> tuple[LintResult, ...]:
    from paceline.assemble.lint import stored
    from paceline.lab.experiment.results import read_experiment

    result = read_experiment(path)
    results = [lint(stored.experiment_facts(result, start_budget_s=beside.start_budget_s))]
    for node, run in _compared(path, result):
        results.append(msgspec.structs.replace(_run(run, Beside(trace=beside.trace)), name=node))
    return tuple(results)


def _compared(path: Path, result: ExperimentResult) -> Iterator[tuple[str, Path]]:
    """(node, run) of every node that has one: the run that it is compared by, its first whole one."""
    for node in result.nodes:
        runs = (path / p.path for p in result.points_of(node.name) if p.status == "ok" and p.path)
        first = next((run for run in runs if _within(run, path)), None)
        if first is not None:
            yield node.name, first


def _within(run: Path, folder: Path) -> bool:
    return (run / RUN).is_file() and run.resolve().is_relative_to(folder.resolve())


__all__ = [
    "ALONE",
    "RULES",
    "Beside",
    "Rule",
    "Serving",
    "findings_by_node",
    "lint_config",
    "lint_folder",
    "lint_server",
    "rule_of",
    "serving_of",
    "write_findings",
]
