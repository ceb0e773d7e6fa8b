"""`paceline soak`: hours of steady load with cancels and disconnects, and a verdict on leaks, hangs and deaths."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.errors import INTERRUPTED, clean_errors

if TYPE_CHECKING:
    from paceline.contracts.artefact import Verdict
    from paceline.lab.gates import GateSpec, SoakResult


def soak(
    url: Annotated[str, typer.Option("--url", help="The server: http://host:port.")],
    hours: Annotated[float | None, typer.Option(help="How long.")] = None,
    minutes: Annotated[float | None, typer.Option(help="How long, in minutes.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model; the first one listed by default.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="The server's key.")] = None,
    pid: Annotated[int | None, typer.Option(help="Its process on this host, for memory and files.")] = None,
    slots: Annotated[int, typer.Option(min=1, help="Clients of the closed loop.")] = 4,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Requests a second instead, as Poisson.")] = None,
    phase: Annotated[float | None, typer.Option(min=0.5, help="Seconds of load between two checkpoints.")] = None,
    watchdog: Annotated[
        float | None, typer.Option(min=1, help="Seconds without any token that are a hang; default that of the gate.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the load.")] = 0,
    gates: Annotated[Path | None, typer.Option(help="TOML with a table [stability]: the limits.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the result.")] = None,
) -> None:
    """Run a soak. Ends with 0 pass, 1 fail, 2 inconclusive."""
    with clean_errors():
        from paceline.errors import ConfigError
        from paceline.lab.artefact import write_verdict
        from paceline.lab.gates import conclude, exit_code, stability_gate
        from paceline.lab.gates.soak import SoakOptions, run_soak

        if (hours is None) == (minutes is None):
            raise ConfigError("how long?", expected="--hours or --minutes", fix="name one of them")
        seconds = hours * 3600 if hours is not None else (minutes or 0) * 60
        spec = limits(gates, watchdog)
        assert spec.stability is not None
        silence_s = watchdog if watchdog is not None else spec.stability.max_no_token_s
        folder = out or Path("runs") / time.strftime("soak-%Y%m%d-%H%M%S")
        options = SoakOptions(
            seconds=seconds, phase_s=phase, slots=slots, rate_rps=rate, watchdog_s=silence_s, seed=seed
        )
        say(f"soak of {seconds / 60:g} min in phases of {options.phase:g} s, result in {folder}; Ctrl-C ends it")
        result = run_soak(url, options, api_key=api_key, model=model, pid=pid, folder=folder, on_phase=show_phase)
        verdict = conclude(stability_gate(result, spec.stability), required={"stability"})
        write_verdict(folder, verdict)
        show(verdict)
        if result.interrupted:
            raise typer.Exit(INTERRUPTED)
        raise typer.Exit(exit_code(verdict))


def limits(path: Path | None, watchdog_s: float | None) -> GateSpec:
    """Of the file, else the usual ones, with the watchdog's limit if it is given. Raises ConfigError."""
    from paceline.errors import ConfigError
    from paceline.lab.gates import GateSpec, StabilityGate, load_gate_spec

    if path is None:
        return GateSpec(stability=StabilityGate() if watchdog_s is None else StabilityGate(max_no_token_s=watchdog_s))
    spec = load_gate_spec(path)
    if spec.stability is None:
        raise ConfigError("the file has no limits for a soak", seen=path.name, expected="a table [stability]")
    return spec


def show_phase(result: SoakResult) -> None:
    if not result.phases:
        return
    last, point = result.phases[-1], result.checkpoints[-1]
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(last.outcomes.items()))
    seen = [f"longest silence {last.longest_silence_s:.2f} s"]
    if point.rss_bytes is not None:
        seen.append(f"rss {point.rss_bytes / (1 << 20):.1f} MiB")
    if point.num_fds is not None:
        seen.append(f"{point.num_fds:g} files")
    if point.num_held_blocks is not None:
        seen.append(f"{point.num_held_blocks:g} blocks held, {point.num_free_blocks or 0:g} free")
    say(f"{result.ran_s / 60:7.2f} min  {outcomes}; {'; '.join(seen)}")


def show(verdict: Verdict) -> None:
    for gate in verdict.gates:
        print(f"{gate.answer.value:13s} {gate.subject}: {gate.sentence}")
    print(verdict.sentence)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
