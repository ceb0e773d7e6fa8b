"""`paceline`: the program. Commands are imported when the program starts; what they need is imported when they run."""

from __future__ import annotations

import typer

import paceline
from paceline.cli import (
    bench,
    bench_step,
    calibrate,
    chat,
    demo,
    doctor,
    gate,
    generate,
    lint,
    mock,
    models,
    plan,
    quality,
    replay,
    report,
    serve,
    sim,
    soak,
    tune,
)
from paceline.config import prepare_process

app = typer.Typer(
    name="paceline",
    help="LLM inference measured by goodput: every optimisation priced, taken when it pays, proved and explained.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def program(version: bool = typer.Option(False, "--version", help="Print the version and end.")) -> None:
    if version:
        print(paceline.__version__)
        raise typer.Exit


app.add_typer(models.app, name="models", help="Fetch, list and remove models.")
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.command("lint")(lint.lint)
app.command("bench-step")(bench_step.bench_step)
app.command("calibrate")(calibrate.calibrate)
app.command("plan")(plan.plan)
app.command("replay")(replay.replay)
app.add_typer(bench.app, name="bench", help="Measure a server under load: goodput, TTFT, TPOT, with intervals.")
app.command("tune")(tune.tune)
app.add_typer(quality.app, name="quality", help="Score a server's answers, or compare two scored servers.")
app.add_typer(gate.app, name="gate", help="Judge stored runs; probe caches across tenants. Exit codes for CI.")
app.command("soak")(soak.soak)
app.command("sim")(sim.sim)
app.command("report")(report.report)
app.command("mock")(mock.mock)
app.command("demo")(demo.demo)


def main() -> None:
    prepare_process()
    app()


if __name__ == "__main__":
    main()
