"""`paceline calibrate`: time steps of a model on this machine, so that predictions rest on what was measured here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import EngineConfig, engine_options
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.cost import Calibration

OFTEN = 8  # times that a size of step was served, to be told of


@engine_options
def calibrate(
    rounds: Annotated[int, typer.Option(help="How often each size of step is timed, 3 or more.")] = 5,
    attempts: Annotated[
        int, typer.Option(min=1, help="How often all is timed at most, while the machine changes meanwhile.")
    ] = 3,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write, in place of the one that serve finds by itself.")
    ] = None,
    served: Annotated[
        list[Path] | None,
        typer.Option(help="Journal of a server that served (serve --journal FILE), to fit prices to; may be repeated."),
    ] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="Run of `paceline bench` beside such a journal: what answers take outside the engine."),
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="Calibration that --served begins with: it prices what was not served.")
    ] = None,
    show: Annotated[bool, typer.Option("--show/--no-show", help="Print each size with its prediction.")] = True,
    *,
    config: EngineConfig,
) -> None:
    """Time a short grid of steps, fit the cost model to them, and save it for serve, sim and plan.

    Give the options that serve will have: a calibration holds for the model, its numeric types, the kernels and the
    machine it was made with. Run it with nothing else using the machine.

    With --served nothing is timed: prices are those of steps as a server took them, with the loop and the clients that
    shared the machine. `sim --calibration` and `plan --calibration` then foretell serving, not an idle device.
    """
    from rich.console import Console

    from paceline.assemble.calibrate import calibrate as time_grid

    console = Console()
    if served:
        found = from_journals(served, run or [], base, out)
        if show:
            print_cells(console, found)
        print_served(console, found, out)
        return
    if run or base is not None:
        raise ConfigError("--run and --base go with --served", fix="give the journal of a server, or leave them out")
    with Console(stderr=True).status(f"loading {config.model.model}") as status:
        found, path = time_grid(
            config,
            rounds=rounds,
            attempts=attempts,
            out=out,
            on_phase=lambda name: status.update(f"{name} ({config.model.model})"),
            on_round=lambda done, total: status.update(f"timing steps, round {done + 1} of {total}"),
        )
    if show:
        print_cells(console, found)
    print_summary(console, found)
    console.print(f"saved {path}", highlight=False, soft_wrap=True)


def from_journals(journals: list[Path], runs: list[Path], base: Path | None, out: Path | None) -> Calibration:
    """Raises ConfigError without `base` and `out`."""
    from paceline.assemble.calibrate_served import calibrate_served

    if base is None or out is None:
        # not where engines look: they learn from the device's part of a step, and would unlearn the rest
        raise ConfigError(
            "--served needs --base and --out",
            seen=" and ".join(name for name, value in (("--base", base), ("--out", out)) if value is None)
            + " left out",
            expected="a calibration to begin with, and a file of its own for what comes of it",
            fix="paceline calibrate --out timed.json, then --served FILE --base timed.json --out served.json",
        )
    return calibrate_served(base, journals, runs, out=out)


def print_served(console: Console, found: Calibration, out: Path | None) -> None:
    """How many steps, how well prices fit sizes that were served often, and what requests take outside the engine."""
    from paceline.contracts.slo import percentile

    errors = sorted(cell.error for cell in found.cells if cell.tries >= OFTEN)
    if errors:
        console.print(
            f"{found.served} steps; off by, {len(errors)} sizes served {OFTEN} times or more: median "
            f"{percentile(errors, 0.5):.1%}, p95 {percentile(errors, 0.95):.1%}",
            highlight=False,
        )
    console.print(f"outside the engine: {found.request_ms:.1f} ms a request", highlight=False)
    console.print(f"saved {out}", highlight=False, soft_wrap=True)


def print_cells(console: Console, found: Calibration) -> None:
    """Each size of step: timed, predicted, the error."""
    from rich.table import Table

    table = Table(title=f"steps of {found.key.model}", title_justify="left")
    table.add_column("size", overflow="fold")
    for name in ("timed ms", "spread", "predicted ms", "off by"):
        table.add_column(name, justify="right")
    table.add_column("used for")
    for cell in found.cells:
        table.add_row(
            cell.cell,
            f"{cell.ms:.2f}",
            f"{cell.spread:.1%}",
            f"{cell.predicted_ms:.2f}",
            f"{cell.predicted_ms / cell.ms - 1:+.1%}",
            "check" if cell.held_out else "fit",
        )
    console.print(table)


def print_summary(console: Console, found: Calibration) -> None:
    """Errors of the fit and of held-out sizes, prices, and whether the machine held still."""
    from paceline.assemble.calibrate import MAX_DRIFT
    from paceline.contracts.slo import percentile
    from paceline.cost.features import NAMES

    for name, held_out in (("fitted", False), ("held-out", True)):
        errors = found.errors(held_out=held_out)
        if errors:
            console.print(
                f"off by, {len(errors)} {name} sizes: median {percentile(errors, 0.5):.1%}, "
                f"p95 {percentile(errors, 0.95):.1%}",
                highlight=False,
            )
    prices = zip(NAMES, found.cost().unit_prices, strict=True)
    text = ", ".join(f"{name} {price:.3g}" for name, price in prices)
    console.print(f"ms per unit: {text}", highlight=False, soft_wrap=True)
    if found.drift > MAX_DRIFT:
        console.print(
            f"the machine changed by {found.drift:.0%} while it was timed (attempt {found.attempts}): intervals "
            "are wider by that. Run it again with nothing else running.",
            style="yellow",
            highlight=False,
        )
