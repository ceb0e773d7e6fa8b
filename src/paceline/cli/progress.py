"""Loading a model with its phases shown: on a terminal as they run, and as one line of times when it is ready."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.config import EngineConfig
    from paceline.llm import LLM


@contextmanager
def loaded(config: EngineConfig, *, show_memory: bool = False) -> Iterator[LLM]:
    """A ready `LLM`, closed at the end. What is said about loading goes to standard error, never among the text."""
    from rich.console import Console

    from paceline.llm import LLM

    console = Console(stderr=True)
    with console.status(f"loading {config.model.model}") as status:
        llm = LLM(config=config, on_phase=lambda name: status.update(f"{name} ({config.model.model})"))
    with llm:
        if console.is_terminal or show_memory:
            times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in llm.phases.items())
            console.print(f"ready in {sum(llm.phases.values()):.2f} s: {times}", highlight=False, style="dim")
        for line in llm.notes:
            console.print(line, highlight=False, style="yellow")
        if show_memory:
            print_ledger(llm, console)
        sys.stderr.flush()
        yield llm


def print_ledger(llm: LLM, console: object) -> None:
    """The memory ledger as a table: predicted, measured, and why."""
    from rich.console import Console
    from rich.table import Table

    assert isinstance(console, Console)
    table = Table(title="memory", title_justify="left")
    table.add_column("")
    for column in ("predicted MiB", "measured MiB"):
        table.add_column(column, justify="right")
    table.add_column("how", overflow="fold")
    for name, predicted, measured, how in llm.ledger.render():
        table.add_row(name, predicted, measured, how)
    console.print(table)
