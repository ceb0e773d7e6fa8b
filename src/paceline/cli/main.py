"""`paceline`: the program. Commands are imported when the program starts; what they need is imported when they run."""

from __future__ import annotations

import typer

import paceline
from paceline.cli import bench_step, chat, demo, doctor, generate, models, replay, serve
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
app.command("bench-step")(bench_step.bench_step)
app.command("replay")(replay.replay)
app.command("demo")(demo.demo)


def main() -> None:
    prepare_process()
    app()


if __name__ == "__main__":
    main()
