"""`paceline report`: the page of a stored run, an experiment, a matrix, or of one run against another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.errors import clean_errors


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, of an experiment or of a matrix.")],
    against: Annotated[Path | None, typer.Option(help="Folder of another run: the page shows RUN against it.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; report.html in RUN if not given.")] = None,
    summary: Annotated[bool, typer.Option(help="Print the closing summary too.")] = True,
) -> None:
    """Write one HTML file that shows everything about a run and needs no network."""
    with clean_errors():
        from paceline.assemble.lint import findings_by_node
        from paceline.lab.report import render_comparison, render_report
        from paceline.lab.report.stored import stored_summary
        from paceline.lab.report.summary import print_summary

        if against is not None:
            file = render_comparison(against, run, out or run / "comparison.html")
        else:
            file = render_report(run, out, findings=findings_by_node(run))
        if summary:
            print_summary(stored_summary(run, against, file))
        else:
            print(file)
