"""`paceline bench-step`: what the host spends on a step, by part."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.errors import clean_errors


def bench_step(
    rows: Annotated[str, typer.Option(help="Decode rows to measure, separated by commas.")] = "1,32,256",
    waiting: Annotated[int, typer.Option(help="Requests waiting behind them.")] = 10_000,
) -> None:
    """Measure host microseconds per step (plan, apply, encode) at several batch sizes; no model is needed."""
    from rich.console import Console
    from rich.table import Table

    from paceline.engine.bench import run

    with clean_errors():
        measured = run(rows=tuple(int(r) for r in rows.split(",")), waiting=waiting)
    table = Table(title="host time per step", show_lines=False)
    for name in measured[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for line in measured:
        table.add_row(*(f"{v:.1f}" if isinstance(v, float) else str(v) for v in line.values()))
    Console().print(table)
