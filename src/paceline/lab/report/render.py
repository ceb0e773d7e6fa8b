"""From stored folders to HTML files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from paceline.errors import LabError
from paceline.lab.report.html import page_html
from paceline.lab.report.page import Page

if TYPE_CHECKING:
    from paceline.lab.experiment.results import ExperimentResult
    from paceline.lab.report.requests import Requests

REPORT = "report.html"
RUN, EXPERIMENT, MATRIX = "run.json", "experiment.json", "matrix.json"
Findings = Mapping[str, Sequence[tuple[str, str]]]


def render_report(path: Path | str, out: Path | str | None = None, *, findings: Findings | None = None) -> Path:
    """Writes the page of a run's, an experiment's or a matrix's folder, `report.html` in it unless `out` names another
    file, and returns where it is. An experiment's points and a matrix's runs get pages of their own. `findings`: of a
    lint, by node. Raises LabError where there is none of them."""
    folder = Path(path)
    if (folder / EXPERIMENT).is_file():
        return write_page(_experiment(folder, findings), Path(out) if out else folder / REPORT)
    if (folder / RUN).is_file():
        return write_page(_run(folder), Path(out) if out else folder / REPORT)
    if (folder / MATRIX).is_file():
        return write_page(_matrix(folder), Path(out) if out else folder / REPORT)
    expected = f"a folder with {RUN}, {EXPERIMENT} or {MATRIX}"
    raise LabError("there is nothing to report here", seen=folder, expected=expected)


def render_comparison(a: Path | str, b: Path | str, out: Path | str) -> Path:
    """Writes the page of run `b` against run `a` to `out`. Raises LabError where one of them is no run."""
    from paceline.lab.artefact import read_run
    from paceline.lab.artefact.compare import compare_runs
    from paceline.lab.report.compare_page import compare_page

    left, right = read_run(Path(a)), read_run(Path(b))
    return write_page(compare_page(compare_runs(left, right), left, right), Path(out))


def write_page(page: Page, file: Path) -> Path:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".new")
    temporary.write_text(page_html(page), encoding="utf-8")
    os.replace(temporary, file)
    return file


def _run(folder: Path) -> Page:
    from paceline.lab.artefact import read_run
    from paceline.lab.report.lint_section import lint_section
    from paceline.lab.report.run_page import run_page

    run = read_run(folder)
    return run_page(
        run.info,
        run.metrics,
        run.records,
        run.server_metrics,
        run.verdict,
        folder=_shown(folder),
        quality=_quality(folder),
        lint=lint_section(folder),
    )


def _matrix(folder: Path) -> Page:
    from paceline.lab.experiment.bench import read_matrix
    from paceline.lab.report.matrix_page import matrix_page

    result = read_matrix(folder)
    for row in result.rows:
        run = folder / row.path
        inside = bool(row.path) and run.resolve().is_relative_to(folder.resolve())
        if inside and (run / RUN).is_file() and not (run / REPORT).is_file():
            write_page(_run(run), run / REPORT)
    return matrix_page(result, REPORT)


def _experiment(folder: Path, findings: Findings | None) -> Page:
    from paceline.lab.experiment.results import read_experiment
    from paceline.lab.report.experiment_page import experiment_page

    result = read_experiment(folder)
    links, requests = _points(folder, result)
    return experiment_page(result, requests=requests, findings=findings, links=links)


def _points(folder: Path, result: ExperimentResult) -> tuple[dict[str, str], dict[str, Requests]]:
    """A page for each point whose run can be read: addresses by point, requests of one compared run of each node."""
    from paceline.lab.artefact import read_run
    from paceline.lab.report.requests import requests_of

    links: dict[str, str] = {}
    requests: dict[str, Requests] = {}
    compared = _compared(result)
    for point in result.points:
        run = folder / point.path
        if not point.path or not (run / RUN).is_file() or not run.resolve().is_relative_to(folder.resolve()):
            continue
        try:
            if not (run / REPORT).is_file():
                write_page(_run(run), run / REPORT)
            if point.id in compared:
                stored = read_run(run)
                requests[point.node] = requests_of(stored.info, stored.records)
        except LabError:  # broken since: the experiment's own numbers remain
            continue
        links[point.id] = quote(f"{Path(point.path).as_posix()}/{REPORT}")
    return links, requests


def _compared(result: ExperimentResult) -> set[str]:
    """The points whose curves are shown: one of each node, the first at the highest rate that all of them have."""
    by_node: dict[str, dict[tuple[float, int], str]] = {}
    for point in result.points:
        if point.status == "ok":
            by_node.setdefault(point.node, {})[point.rate_rps or 0.0, -point.repeat] = point.id
    common = set.intersection(*(set(found) for found in by_node.values())) if by_node else set()
    return {found[max(common)] for found in by_node.values()} if common else set()


def _quality(folder: Path) -> dict[str, Any]:
    """The sets that were scored beside the load."""
    from paceline.lab.artefact.scores import read_scores
    from paceline.lab.stats.proportion import share_estimate

    scores = [
        {
            "set": scored.set,
            "num_items": len(scored.items),
            "accuracy": msgspec.to_builtins(
                share_estimate(sum(item.right for item in scored.items), len(scored.items))
            ),
        }
        for scored in read_scores(folder).values()
    ]
    return {"scores": scores} if scores else {}


def _shown(folder: Path) -> str:
    """As a reader would name it from where the command ran."""
    return os.path.relpath(folder)
