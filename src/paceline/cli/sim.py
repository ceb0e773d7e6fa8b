"""`paceline sim`: a workload against a fleet that is not there; the numbers that `paceline bench` prints."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.bench import command_of
from paceline.cli.errors import clean_errors

if TYPE_CHECKING:
    from paceline.assemble.sim import Joining, Outage, Simulated

ENGINE, FLEET, LOAD, ANSWER = "Engine", "Fleet", "Load", "Answer"


def sim(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model, or a card of the planner; else --config's.", rich_help_panel=ENGINE),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Card of the planner's table; this machine if left out.", rich_help_panel=ENGINE),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="File of `paceline calibrate` for this model. Left out, as --device: this machine's, if there is one.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML of options, as `serve` takes it.", rich_help_panel=ENGINE)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: one of serve's options; repeatable.", rich_help_panel=ENGINE),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind the router.", rich_help_panel=FLEET)] = 1,
    router: Annotated[
        str,
        typer.Option(
            help="round-robin, least-loaded, power-of-two, longest-prefix, prefix-affinity, predicted-seconds.",
            rich_help_panel=FLEET,
        ),
    ] = "least-loaded",
    fail: Annotated[
        list[str] | None,
        typer.Option(help="REPLICA@SECONDS: it fails then, and comes back; repeatable.", rich_help_panel=FLEET),
    ] = None,
    join: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Seconds: one more replica is started then; repeatable.", rich_help_panel=FLEET),
    ] = None,
    cold_start: Annotated[
        float,
        typer.Option(min=0, help="Seconds from the start of a replica to its first request.", rich_help_panel=FLEET),
    ] = 30.0,
    workload: Annotated[
        str, typer.Option(help="A name (`bench --list`), a .toml file, or a trace.", rich_help_panel=LOAD)
    ] = "steady",
    rate: Annotated[float | None, typer.Option(min=0, help="Requests/s, in all.", rich_help_panel=LOAD)] = None,
    duration: Annotated[float | None, typer.Option(min=0, help="Seconds of the load.", rich_help_panel=LOAD)] = None,
    num_requests: Annotated[
        int, typer.Option(min=1, help="Requests per replica a named workload aims at.", rich_help_panel=LOAD)
    ] = 100,
    slo: Annotated[
        str, typer.Option(help="Targets: ttft=1s,tpot=60ms. Default: the workload's own.", rich_help_panel=LOAD)
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the plan and of what is drawn.", rich_help_panel=LOAD)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the records, a new one, for `paceline report`.", rich_help_panel=ANSWER),
    ] = None,
    question: Annotated[str, typer.Option(help="What this run is to answer.", rich_help_panel=ANSWER)] = "",
) -> None:
    """Simulate a fleet with the engine's own scheduler in virtual time; print goodput, TTFT, TPOT as `bench` does."""
    with clean_errors():
        from paceline.assemble.sim import load_workload, simulate, simulated_engine
        from paceline.config import load_config
        from paceline.lab.experiment.bench import refuse_used
        from paceline.lab.workload import parse_slo, with_slo

        if out is not None:
            refuse_used(out)
        changes: list[Outage | Joining] = [*map(_outage, fail or ()), *_joining(join or ())]
        flags = dict(map(_setting, set_ or ())) | ({} if model is None else {"model": model})
        engine = simulated_engine(load_config(config, flags), card=device, calibration=calibration)
        spec = load_workload(
            workload, engine, num_replicas=replicas, rate=rate, duration_s=duration, num_requests=num_requests
        )
        if slo:
            spec = with_slo(spec, parse_slo(slo))
        began = time.perf_counter()
        simulated = simulate(
            engine,
            spec,
            num_replicas=replicas,
            router=router,
            seed=seed,
            changes=changes,
            cold_start_s=cold_start,
            question=question,
            command=command_of(context).replace("paceline bench", "paceline sim", 1),
        )
        took_s = time.perf_counter() - began
        _conclude(simulated, out, took_s, engine.cost_source)


def _conclude(simulated: Simulated, out: Path | None, took_s: float, source: str) -> None:
    from paceline.lab.artefact import write_run
    from paceline.lab.metrics import compute
    from paceline.lab.report.summary import print_summary, run_summary

    info, records, totals = simulated.info, simulated.records, simulated.totals
    if out is None:
        print_summary(run_summary(info, compute(info, records)))
    else:
        run = write_run(out, info, records, plan=simulated.plan)
        print_summary(run_summary(run.info, run.metrics))
    replicas = simulated.num_requests
    if len(replicas) > 1:
        mean = sum(replicas) / len(replicas)
        over = max(replicas) / max(1e-9, mean)
        print(f"requests by replica: {min(replicas)} to {max(replicas)}; most over mean {over:.2f}")
    print(f"prices: {source}")
    speed = totals.virtual_s / took_s if took_s > 0 else 0.0
    print(
        f"simulated {totals.virtual_s:.4g} s in {took_s:.3g} s ({speed:.3g} times as fast): {len(records)} requests, "
        f"{totals.num_steps} steps in {totals.num_events} events"
    )
    if out is not None:
        print(f"records: {out} (`paceline report {out}` makes the page)")


def _setting(text: str) -> tuple[str, Any]:
    from paceline.errors import ConfigError

    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError("--set was not understood", seen=text, expected="NAME=VALUE, such as max_num_seqs=32")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def _outage(text: str) -> Outage:
    from paceline.assemble.sim import Outage
    from paceline.errors import ConfigError

    replica, _, at_s = text.partition("@")
    try:
        return Outage(replica=int(replica), at_s=float(at_s))
    except ValueError:
        raise ConfigError("--fail was not understood", seen=text, expected="REPLICA@SECONDS, such as 0@30") from None


def _joining(times: list[float] | tuple[float, ...]) -> list[Joining]:
    from paceline.assemble.sim import Joining

    return [Joining(at_s=at_s) for at_s in times]
