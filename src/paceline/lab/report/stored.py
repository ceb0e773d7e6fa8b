"""The closing summary of what is stored in a folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType

from paceline.lab.report.render import EXPERIMENT, MATRIX
from paceline.lab.report.summary import comparison_summary, experiment_summary, matrix_summary, run_summary


def stored_summary(path: Path, against: Path | None = None, report: Path | None = None) -> RenderableType:
    """Of a run, an experiment, a matrix, or of run `path` against another. Raises LabError where there is none."""
    from paceline.lab.artefact import read_run
    from paceline.lab.artefact.compare import compare_runs

    if against is not None:
        return comparison_summary(compare_runs(read_run(against), read_run(path)), report)
    if (path / EXPERIMENT).is_file():
        from paceline.lab.experiment.results import read_experiment

        return experiment_summary(read_experiment(path), report)
    if (path / MATRIX).is_file():
        from paceline.lab.experiment.bench import read_matrix

        return matrix_summary(read_matrix(path), report)
    run = read_run(path)
    return run_summary(run.info, run.metrics, run.verdict, report)
