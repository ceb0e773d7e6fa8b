"""`paceline models`: fetch, list and remove models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.errors import clean_errors

if TYPE_CHECKING:
    from paceline.hub import HubAccess
    from paceline.hub.disk import Progress

app = typer.Typer(no_args_is_help=True)


@app.command("pull")
def pull(
    names: Annotated[
        list[str], typer.Argument(help="Short names (see list) or hub ids: org/name or org/name@revision.")
    ],
) -> None:
    """Fetch models, checked against their digests. An interrupted pull goes on where it stopped."""
    with clean_errors():
        from paceline.config.env import read_environment
        from paceline.hub import resolve

        env = read_environment()
        for name in names:
            with _progress() as progress:
                files = resolve(name, env.home, access=_access(), progress=progress)
            typer.echo(f"{name}: {_megabytes(files.size_bytes)} in {files.path}")


@app.command("list")
def list_models() -> None:
    """Show the short names, and what has been fetched and where."""
    with clean_errors():
        from rich.console import Console
        from rich.table import Table

        from paceline.config.env import read_environment
        from paceline.hub import ALIASES, stored

        home = read_environment().home
        fetched = {model.name: model for model in stored(home)}
        table = Table(caption=f"fetched models lie under {home}", caption_justify="left")
        for column in ("model", "size", "fetched", "what it is"):
            table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
        for alias in ALIASES.values():
            here = "yes" if alias.name in fetched else "no"
            table.add_row(alias.name, _megabytes(alias.size_bytes), here, f"{alias.about} ({alias.license})")
        for model in fetched.values():
            if model.name not in ALIASES:
                table.add_row(model.name, _megabytes(model.size_bytes), "yes", "hub model")
        Console().print(table)


@app.command("rm")
def remove_models(
    names: Annotated[list[str], typer.Argument(help="Models to delete, as `list` shows them.")],
) -> None:
    """Delete fetched models."""
    with clean_errors():
        from paceline.config.env import read_environment
        from paceline.hub import remove

        home = read_environment().home
        for name in names:
            gone = remove(name, home)
            typer.echo(f"{name}: {_megabytes(gone.size_bytes)} freed")


def _access() -> HubAccess:
    from paceline.config.env import read_environment
    from paceline.hub import HubAccess

    env = read_environment()
    return HubAccess(endpoint=env.hf_endpoint, token=env.hf_token, offline=env.hf_offline)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


@contextmanager
def _progress() -> Iterator[Progress]:
    """One line on a terminal: what is being done, a bar, bytes and speed. Elsewhere, one line per stage."""
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=None),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        shown = ""

        def report(stage: str, done: int, total: int | None, /) -> None:
            nonlocal shown
            if stage != shown:
                shown = stage
                bar.reset(task, description=stage, total=total)
                if not console.is_terminal:
                    console.print(stage, highlight=False)
            bar.update(task, completed=done, total=total)

        yield report
