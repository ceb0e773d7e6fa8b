"""`paceline tune`: a graph of configurations, each changed in one group, measured in turns, with a verdict per edge."""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.errors import FAILURE, INTERRUPTED, clean_errors

if TYPE_CHECKING:
    from paceline.lab.experiment.results import ExperimentResult, PointResult
    from paceline.lab.experiment.schedule import Point
    from paceline.lab.experiment.spec import Loaded
    from paceline.lab.load import Progress


def tune(
    spec: Annotated[Path, typer.Argument(help="TOML file of the experiment; see docs/guides/tuning.md.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the experiment. The same spec and folder go on with what was interrupted."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read the spec, show what would be measured, and end.")
    ] = False,
) -> None:
    """Measure a graph of server configurations against one workload, one changed group per edge, and name the best."""
    with clean_errors():
        from paceline.config.options import full_table
        from paceline.lab.experiment.runner import check_experiment, run_experiment
        from paceline.lab.experiment.spec import load_experiment

        loaded = load_experiment(spec)
        name = re.sub(r"[^\w.-]+", "-", loaded.spec.experiment.name).strip(".-") or "experiment"
        folder = out or Path("runs") / f"{name}-{loaded.sha256[:8]}"
        known = {name: option.group for name, option in full_table().items()}
        if check:
            check_experiment(loaded, known_groups=known)
            describe(loaded)
            return
        say(f"experiment in {folder}; Ctrl-C ends it with what is measured, the same command goes on")
        result = run_experiment(
            loaded, folder, known_groups=known, reporter=Lines(sys.stderr.isatty()), stop=stop_on_signals()
        )
        show(result, folder)
        if result.status == "partial":
            raise typer.Exit(INTERRUPTED)
        if result.best is None:
            raise typer.Exit(FAILURE)


def signals_as_ever() -> None:
    """Ends what `stop_on_signals` set up: a Ctrl-C interrupts at once again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stop_on_signals() -> threading.Event:
    """Set by the first Ctrl-C or SIGTERM. The second one raises, and servers are ended on the way out all the same."""
    stop = threading.Event()

    def heard(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say("ending: the point that runs is cut short and kept as partial (again: at once)")

    signal.signal(signal.SIGINT, heard)
    signal.signal(signal.SIGTERM, heard)
    return stop


def describe(loaded: Loaded) -> None:
    """What `--check` shows."""
    spec = loaded.spec
    say(f"{spec.experiment.name}: {len(spec.nodes)} nodes")
    for name in spec.nodes:
        if name in spec.graph:
            node = spec.graph[name]
            say(f"  {name}: {node.parent} with {node.group} changed: {node.change}")
        else:
            say(f"  {name}: {spec.options_of(name)}")
    if spec.search is not None:
        say(f"each: a search for its highest rate, at most {spec.search.max_points} points")
        return
    rates = len(spec.rates) or 1
    total = len(spec.nodes) * spec.experiment.repeats * rates
    say(f"{total} points: {spec.experiment.repeats} repeats of {rates} rate(s), order {spec.experiment.order}")


class Lines:
    """Progress as lines; on a terminal, one line that changes while a load runs."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def node(self, name: str, words: str) -> None:
        self._clear()
        say(f"[{name}] {words}")

    def point_begins(self, point: Point, number: int, total: int | None) -> None:
        self._clear()
        of = f" of {total}" if total else ""
        rate = f" at {point.rate_rps:g} requests/s" if point.rate_rps is not None else ""
        say(f"point {number}{of}: {point.node}, repeat {point.repeat}{rate}")

    def progress(self, progress: Progress) -> None:
        if not self._terminal:
            return
        left = "" if progress.time_left_s is None else f", {progress.time_left_s:.0f} s left"
        ttft = "" if progress.ttft_p50_s is None else f", TTFT p50 {1e3 * progress.ttft_p50_s:.0f} ms"
        line = f"  {progress.num_done} of {progress.num_planned} done, {progress.num_in_flight} in flight{ttft}{left}"
        print(f"\r{line[:118]:118s}", end="", file=sys.stderr, flush=True)

    def point_ended(self, point: PointResult) -> None:
        self._clear()
        if point.status != "ok":
            say(f"  {point.status}: {point.reason}")
            for line in point.log_tail[-5:]:
                say(f"    {line}")
            return
        told = []
        for name in ("goodput_rps", "ttft_p50_s", "tpot_p50_s"):
            figure = point.figures.get(name)
            if figure is not None and figure.value is not None:
                told.append(f"{name} {figure.value:.4g}")
        say(f"  {point.num_good} of {point.num_requests} requests good; {', '.join(told)}")

    def _clear(self) -> None:
        if self._terminal:
            print(f"\r{'':118s}\r", end="", file=sys.stderr, flush=True)


def show(result: ExperimentResult, folder: Path) -> None:
    """The answer, on standard output."""
    for edge in result.edges:
        print(f"{edge.answer:13s} {edge.sentence}")
        if edge.verdict.gates:
            print(f"{'':13s} gates: {edge.verdict.sentence}")
    for caution in result.cautions:
        print(f"caution: {caution.sentence}")
    print(result.answer)
    if result.serve_command:
        print(f"serve it: {result.serve_command}")
    print(f"results: {folder / 'experiment.json'}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
