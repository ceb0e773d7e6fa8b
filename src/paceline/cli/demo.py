"""`paceline demo`: what each step of a ladder of configurations brings on this machine, then the best one at work."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from paceline.cli.errors import INTERRUPTED
from paceline.cli.options import EngineConfig, engine_options
from paceline.errors import EngineError

if TYPE_CHECKING:
    from paceline.lab.experiment.results import ExperimentResult
    from paceline.lab.experiment.spec import Loaded
    from paceline.lab.workload import TargetSize

JOURNAL = "sizing.journal"  # of the server that was sized: its steps foretell the ladder
QUESTION = "In two sentences: why does a library lend books for four weeks only?"


@engine_options
def demo(
    report: Annotated[Path, typer.Option("--report", help="Folder of the report; what it held is replaced.")] = Path(
        "out/demo"
    ),
    ladder: Annotated[bool, typer.Option("--ladder/--no-ladder", help="Climb it, or only show the server.")] = True,
    load_seed: Annotated[int, typer.Option("--load-seed", help="Seed of the mixed calls.")] = 1,
    rate: Annotated[float, typer.Option("--rate", help="Mixed calls per second (Poisson).")] = 2.0,
    calls: Annotated[int, typer.Option("--calls", min=8, help="Mixed calls.")] = 64,
    *,
    config: EngineConfig,
) -> None:
    """Measure a ladder of configurations within one SLO, then serve the best one to a stock client."""
    from paceline.cli.demo_drive import require_openai
    from paceline.cli.demo_ladder import shared_options

    require_openai()
    if report.exists():
        shutil.rmtree(report)
    report.mkdir(parents=True)
    options = shared_options(config)
    climbed = climb(options, report) if ladder else None
    if climbed is not None and climbed.result.best:
        options = climbed.result.node(climbed.result.best).options
    serve_it(options, report, seed=load_seed, rate=rate, num_calls=calls)
    if climbed is not None:
        print("\n".join(["", *foretold_lines(climbed, report)]), flush=True)
        show(climbed.result, report)


class Climbed(NamedTuple):
    """The ladder: its spec, what was measured, and the times of this machine's steps, taken before."""

    loaded: Loaded
    result: ExperimentResult
    calibration: Path


def climb(base: dict[str, Any], report: Path) -> Climbed:
    """Sizes the machine, times its steps, writes the spec, runs it. Raises LabError where nothing could be measured."""
    from paceline.cli.demo_ladder import first_rung, write_ladder
    from paceline.cli.demo_predict import as_served, time_steps
    from paceline.cli.tune import Lines, signals_as_ever, stop_on_signals
    from paceline.config.options import full_table
    from paceline.lab.experiment import load_experiment, run_experiment

    stop = stop_on_signals()
    size, capacity_rps = sized(base, report)
    file = write_ladder(size, capacity_rps, base, report)
    say("timing steps, to foretell the ladder before it is climbed")
    calibration = as_served(time_steps(first_rung(base), report), report / JOURNAL, report / "sizing", report)
    loaded = load_experiment(file)
    assert isinstance(loaded.workload, dict), "the ladder's workload stands in its spec"
    slo = loaded.workload["slo"]["default"]
    say(f"targets, fixed before the run: TTFT {slo['ttft_s']:g} s, TPOT {1000 * slo['tpot_s']:.0f} ms (spec: {file})")
    known = {name: option.group for name, option in full_table().items()}
    result = run_experiment(
        loaded, report / "ladder", known_groups=known, reporter=Lines(sys.stderr.isatty()), stop=stop
    )
    if stop.is_set():
        raise typer.Exit(INTERRUPTED)
    signals_as_ever()
    return Climbed(loaded, result, calibration)


def sized(base: dict[str, Any], report: Path) -> tuple[TargetSize, float]:
    """How fast an unloaded server of this machine is, and how many of the ladder's requests it answers in a second."""
    import asyncio

    from paceline.cli.demo_ladder import OUTPUT, first_rung, probe_load
    from paceline.lab.experiment import Launch, OwnedServer, measure_size, paceline_argv
    from paceline.lab.experiment.measure import MeasureOptions, measure
    from paceline.lab.load import probe
    from paceline.lab.workload import load_spec

    say(f"starting a server to see how fast this machine is (log: {report / 'sizing.log'})")
    journal = report / JOURNAL
    launch = Launch(argv=paceline_argv(first_rung(base), ("--no-access-log", "--journal", str(journal))), url="")
    with OwnedServer(launch, report / "sizing.log") as server:
        server.wait_ready()
        target = asyncio.run(probe(server.url))
        size = measure_size(target)
        options = MeasureOptions(calibrate=False, server_metrics=False, energy=())
        run = measure(target, load_spec(probe_load(size)), seed=2, out=report / "sizing", options=options)
    tokens_per_s = run.metrics.output_tokens_per_s.value
    if not tokens_per_s:
        raise EngineError("the server answered nothing in time", seen=report / "sizing", fix="see sizing.log beside it")
    capacity_rps = tokens_per_s / (sum(OUTPUT) / 2)
    say(
        f"unloaded: TTFT {1000 * size.ttft_s:.0f} ms for {size.ttft_tokens} tokens, TPOT {1000 * size.tpot_s:.1f} ms, "
        f"{size.parallel:.1f} answers at once in the time of one; busy: {capacity_rps:.1f} requests/s"
    )
    return size, capacity_rps


def serve_it(options: dict[str, Any], report: Path, *, seed: int, rate: float, num_calls: int) -> None:
    """A mixed load through the stock client, one streamed answer, a clean stop. Raises EngineError if it went wrong."""
    from paceline.cli.demo_drive import answer, drive
    from paceline.cli.demo_load import demo_load
    from paceline.cli.demo_report import memory_lines, problems, render, summarise
    from paceline.lab.experiment import Launch, OwnedServer, paceline_argv

    say(f"\nserving: {' '.join(f'{name}={value}' for name, value in options.items())}")
    launch = Launch(argv=paceline_argv(options, ("--no-access-log",)), url="")
    with OwnedServer(launch, report / "server.log") as server:
        server.wait_ready()
        about = server.get("/v1/internal/config")
        model = server.get("/v1/models")["data"][0]["id"]
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in about["phases"].items())
        memory = memory_lines(about["ledger"])
        print("\n".join([f"ready at {server.url}: {phases}", "", *memory, ""]), flush=True)
        jobs = demo_load(seed, rate, num_calls)
        print(f"sending {len(jobs)} calls at {rate:g} calls/s through the stock client, streamed ...", flush=True)
        timelines = drive(server.url, model, jobs)
        engine = server.get("/v1/internal/stats")["engine"]
        if engine is None:
            raise server.trouble("has an engine that does not answer")
        summary = summarise(jobs, timelines, engine)
        lines = render(summary)
        print("\n".join([*lines, "", f"> {QUESTION}"]), flush=True)
        text = answer(server.url, model, QUESTION, max_tokens=64)
        status = server.stop()
    print(f"\nthe server stopped with status {status}", flush=True)
    (report / "calls.json").write_text(json.dumps({**summary, "start_phases_s": about["phases"]}, indent=2))
    body = ["# paceline demo", "", "```text", *lines, "", *memory, "```", "", f"> {QUESTION}", "", text, ""]
    (report / "calls.md").write_text("\n".join(body))
    wrong = [*problems(summary), *([] if text else ["the answer was empty"])]
    if status:
        wrong.append(f"the server ended with status {status}")
    if wrong:
        raise EngineError("the demo did not work", seen="; ".join(wrong), fix=f"see {report / 'server.log'}")


def foretold_lines(climbed: Climbed, report: Path) -> list[str]:
    """The simulation of every point beside its measurement, and the plan for this machine; kept in the report too."""
    from paceline.cli.demo_predict import choice, foretell, plan_lines, table

    foretold = list(foretell(climbed.loaded, climbed.result, climbed.calibration))
    lines = [
        *table(foretold),
        *choice(foretold),
        "(the same scheduler over steps that were taken before the ladder; other types of numbers were not timed)",
        "",
        *plan_lines(climbed.loaded, climbed.result, climbed.calibration, report),
    ]
    (report / "foretold.txt").write_text("\n".join(lines) + "\n")
    return lines


def show(result: ExperimentResult, report: Path) -> None:
    """The verdict comes last: it is what the reader is left with."""
    from paceline.lab.report import render_report
    from paceline.lab.report.summary import experiment_summary, print_summary

    page = render_report(report / "ladder")
    print(flush=True)
    print_summary(experiment_summary(result, page.resolve()))
    if result.serve_command:
        print(f"serve the best: {result.serve_command}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
