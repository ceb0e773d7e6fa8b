"""`paceline bench-step`: what the host spends on a step, by part."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli.errors import clean_errors


def bench_step(
    rows: Annotated[str, typer.Option(help="Decode rows to measure, separated by commas.")] = "1,32,256",
    waiting: Annotated[int, typer.Option(help="Requests waiting behind them.")] = 10_000,
) -> None:
    """Measure host time per step (plan, input build, apply) at several batch sizes; no model is needed."""
    with clean_errors():
        from paceline.assemble import bench_step as measure
        from paceline.engine.bench import render
        from paceline.errors import ConfigError

        try:
            counts = [int(count) for count in rows.split(",")]
        except ValueError:
            raise ConfigError("--rows is not a list of counts", seen=rows, expected="such as 1,32,256") from None
        if any(count < 1 for count in counts) or waiting < 0:
            raise ConfigError("a count is out of range", seen=f"rows {rows}, waiting {waiting}", expected="rows >= 1")
        print(render(measure(counts, waiting)))
