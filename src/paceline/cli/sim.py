"""`paceline sim`: a workload against a fleet that is not there; the numbers that `paceline bench` prints."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.bench import command_of
from paceline.cli.errors import clean_errors
from paceline.cli.fleet import acceptance_of
from paceline.cli.lint import keep_findings

if TYPE_CHECKING:
    from paceline.assemble.sim import Joining, Outage, ScalingPolicy, Simulated, SimulatedEngine, Split

ENGINE, FLEET, SCALING, LOAD, ANSWER = "Engine", "Fleet", "Scaling", "Load", "Answer"
MOST_COLD_START_S = 600.0


def sim(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model, or a card of the planner; else --config's.", rich_help_panel=ENGINE),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Card of the planner's table, or a .toml of one's own; this machine if left out.",
            rich_help_panel=ENGINE,
        ),
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
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="Devices that divide each matrix; wants --device.", rich_help_panel=ENGINE)
    ] = 1,
    pipeline_parallel_size: Annotated[
        int, typer.Option(min=1, help="Devices that divide the layers.", rich_help_panel=ENGINE)
    ] = 1,
    expert_parallel_size: Annotated[
        int, typer.Option(min=1, help="Groups that divide the experts.", rich_help_panel=ENGINE)
    ] = 1,
    context_parallel_size: Annotated[
        int, typer.Option(min=1, help="Devices that divide positions and KV cache.", rich_help_panel=ENGINE)
    ] = 1,
    expert_imbalance: Annotated[
        float, typer.Option(min=1, help="Work of the busiest expert group over the mean.", rich_help_panel=ENGINE)
    ] = 1.2,
    speculative: Annotated[
        str,
        typer.Option(
            help="Tokens a step yields with 1, 2, 3 ... drafts, as measured: 1.7,2.2,2.5.", rich_help_panel=ENGINE
        ),
    ] = "",
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind the router.", rich_help_panel=FLEET)] = 1,
    router: Annotated[
        str,
        typer.Option(
            help="round-robin, least-loaded, power-of-two, longest-prefix, prefix-affinity, predicted-seconds.",
            rich_help_panel=FLEET,
        ),
    ] = "least-loaded",
    prefill_replicas: Annotated[
        int, typer.Option(min=0, help="So many of --replicas only compute prompts; 0: none.", rich_help_panel=FLEET)
    ] = 0,
    kv_link: Annotated[
        str,
        typer.Option(
            help="GB/s one way, and us: 50,20. What carries KV from prefill to decode; left out: --device's network.",
            rich_help_panel=FLEET,
        ),
    ] = "",
    kv_overlap: Annotated[
        bool, typer.Option(help="KV of a layer leaves when the layer is computed.", rich_help_panel=FLEET)
    ] = False,
    kv_tier: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=GIB,GBPS[,US][,shared]: a store for KV that the device evicts, such as dram=64,25,10; "
            "repeatable, nearest first; shared: one for all replicas. Only simulated: the engine has none yet.",
            rich_help_panel=FLEET,
        ),
    ] = None,
    kv_tier_policy: Annotated[
        str,
        typer.Option(
            help="priced: restore what comes faster than it is computed; always; never.", rich_help_panel=FLEET
        ),
    ] = "priced",
    fail: Annotated[
        list[str] | None,
        typer.Option(help="REPLICA@SECONDS: it fails then, and comes back; repeatable.", rich_help_panel=FLEET),
    ] = None,
    join: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Seconds: one more replica is started then; repeatable.", rich_help_panel=FLEET),
    ] = None,
    cold_start: Annotated[
        str,
        typer.Option(
            help="Seconds from a replica's start to its first request, or by phase: process=5,weights=20,warm-up=5.",
            rich_help_panel=FLEET,
        ),
    ] = "30",
    autoscale: Annotated[
        str, typer.Option(help="LEAST-MOST: replicas follow the load, from --replicas on.", rich_help_panel=SCALING)
    ] = "",
    scale_target: Annotated[
        float, typer.Option(help="Open requests a replica should have.", rich_help_panel=SCALING)
    ] = 8.0,
    scale_period: Annotated[
        float, typer.Option(help="Seconds between two looks of the autoscaler.", rich_help_panel=SCALING)
    ] = 5.0,
    scale_up_most: Annotated[
        int, typer.Option(min=1, help="Replicas started at one look, at most.", rich_help_panel=SCALING)
    ] = 4,
    scale_down_after: Annotated[
        float, typer.Option(min=0, help="Seconds that fewer must have been wanted.", rich_help_panel=SCALING)
    ] = 60.0,
    scale_up_budget: Annotated[
        bool,
        typer.Option(
            help="Also find the longest cold start with which the load meets its targets.", rich_help_panel=SCALING
        ),
    ] = False,
    workload: Annotated[
        str, typer.Option(help="A name (`bench --list`), a .toml file, or a trace.", rich_help_panel=LOAD)
    ] = "steady",
    rate: Annotated[float | None, typer.Option(min=0, help="Requests/s, in all.", rich_help_panel=LOAD)] = None,
    duration: Annotated[float | None, typer.Option(min=0, help="Seconds of the load.", rich_help_panel=LOAD)] = None,
    num_requests: Annotated[
        int, typer.Option(min=1, help="Requests per replica a named workload aims at.", rich_help_panel=LOAD)
    ] = 100,
    slo: Annotated[
        str,
        typer.Option(
            help="Targets that judge the run: ttft=1s,tpot=60ms. Default: the workload's own. What the server "
            "works towards is --set slo=..., as with serve.",
            rich_help_panel=LOAD,
        ),
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
        from paceline.assemble.sim import (
            degrees_of,
            load_workload,
            server_terms,
            simulate,
            simulated_engine,
            tiering_of,
            with_drafts,
        )
        from paceline.assemble.sim import scale_up_budget as find_budget
        from paceline.config import load_config, load_server_config, server_table
        from paceline.errors import ConfigError
        from paceline.lab.experiment.bench import refuse_used
        from paceline.lab.workload import parse_slo, with_slo

        if out is not None:
            refuse_used(out)
        phases = _phases(cold_start)
        cold_start_s = sum(phases.values())
        scaling = _scaling(
            autoscale, scale_target, scale_period, scale_up_most=scale_up_most, scale_down_after=scale_down_after
        )
        if scale_up_budget and scaling is None:
            raise ConfigError("nothing scales up", seen="--scale-up-budget", fix="give --autoscale LEAST-MOST as well")
        changes: list[Outage | Joining] = [*map(_outage, fail or ()), *_joining(join or ())]
        flags = dict(map(_setting, set_ or ()))
        of_server = {name: flags.pop(name) for name in list(flags) if name.replace("-", "_") in server_table()}
        terms = server_terms(load_server_config(config, of_server))
        flags |= {} if model is None else {"model": model}
        engine = simulated_engine(
            load_config(config, flags),
            card=device,
            calibration=calibration,
            degrees=degrees_of(
                tensor_parallel_size, pipeline_parallel_size, expert_parallel_size, context_parallel_size
            ),
            expert_imbalance=expert_imbalance,
        )
        if speculative:
            engine = with_drafts(engine, acceptance_of(speculative))
        spec = load_workload(
            workload, engine, num_replicas=replicas, rate=rate, duration_s=duration, num_requests=num_requests
        )
        if slo:
            spec = with_slo(spec, parse_slo(slo))
        split = _split(engine, prefill_replicas, kv_link, overlap=kv_overlap)
        tiering = tiering_of(kv_tier or (), kv_tier_policy, engine)

        def run(cold_s: float) -> Simulated:
            return simulate(
                engine,
                spec,
                num_replicas=replicas,
                router=router,
                seed=seed,
                changes=changes,
                cold_start_s=cold_s,
                terms=terms,
                split=split,
                tiering=tiering,
                scaling=scaling,
                phases=phases if cold_s == cold_start_s else None,
                question=question,
                command=command_of(context).replace("paceline bench", "paceline sim", 1),
            )

        began = time.perf_counter()
        simulated = run(cold_start_s)
        took_s = time.perf_counter() - began
        _conclude(simulated, out, took_s, engine.cost_source)
        if scale_up_budget:
            _print_budget(*find_budget(run, MOST_COLD_START_S))


def _conclude(simulated: Simulated, out: Path | None, took_s: float, source: str) -> None:
    from paceline.assemble.sim import is_met, rows_of, tier_words
    from paceline.lab.artefact import write_run
    from paceline.lab.metrics import compute
    from paceline.lab.report.summary import print_summary, run_summary

    info, records, totals = simulated.info, simulated.records, simulated.totals
    if out is None:
        print_summary(run_summary(info, compute(info, records)))
    else:
        rows = rows_of(simulated.looks) if simulated.looks else None
        run = write_run(out, info, records, plan=simulated.plan, server_metrics=rows)
        print_summary(run_summary(run.info, run.metrics))
    replicas = simulated.num_requests
    if len(replicas) > 1:
        mean = sum(replicas) / len(replicas)
        over = max(replicas) / max(1e-9, mean)
        print(f"requests by replica: {min(replicas)} to {max(replicas)}; most over mean {over:.2f}")
    if simulated.looks:
        wanted = [look.desired for look in simulated.looks]
        survived = "met" if is_met(simulated) else "missed"
        print(
            f"replicas wanted: {min(wanted)} to {max(wanted)}; {totals.replica_s / 3600:.3g} replica-hours; "
            f"targets {survived}"
        )
    if any(simulated.transfer_s):
        busy_s, waited_s = simulated.transfer_s
        print(f"KV between replicas: links busy {busy_s:.3g} s in all; prompts waited {waited_s:.3g} s for one")
    for row in simulated.tiers:
        print(tier_words(row))
    print(f"prices: {source}")
    speed = totals.virtual_s / took_s if took_s > 0 else 0.0
    print(
        f"simulated {totals.virtual_s:.4g} s in {took_s:.3g} s ({speed:.3g} times as fast): {len(records)} requests, "
        f"{totals.num_steps} steps in {totals.num_events} events"
    )
    if out is not None:
        print(f"records: {out} (`paceline report {out}` makes the page)")
        for line in keep_findings([out]):
            print(line)


def _print_budget(longest_s: float, failed_s: float | None) -> None:
    if failed_s is None:
        print(f"scale-up budget: the targets are met with any cold start up to {longest_s:g} s")
    else:
        print(f"scale-up budget: met with a cold start of {longest_s:.4g} s, missed with {failed_s:.4g} s")


def _phases(text: str) -> dict[str, float]:
    """Seconds of a cold start by phase; a number alone is one phase."""
    from paceline.errors import ConfigError

    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf") or (equals and not name.strip()):
            raise ConfigError(
                "--cold-start was not understood", seen=text, expected="seconds, or process=5,weights=20,warm-up=5"
            )
        found[name.strip() or "cold start"] = seconds
    return found


def _scaling(
    text: str, target: float, period_s: float, *, scale_up_most: int, scale_down_after: float
) -> ScalingPolicy | None:
    from paceline.assemble.sim import ScalingPolicy
    from paceline.errors import ConfigError

    if not text:
        return None
    least, dash, most = text.partition("-")
    if not (dash and least.strip().isdigit() and most.strip().isdigit()):
        raise ConfigError("--autoscale was not understood", seen=text, expected="LEAST-MOST, such as 1-8")
    return ScalingPolicy(
        min_replicas=int(least),
        max_replicas=int(most),
        target_open=target,
        period_s=period_s,
        max_up=scale_up_most,
        down_after_s=scale_down_after,
    )


def _split(engine: SimulatedEngine, num_prefill: int, link: str, *, overlap: bool) -> Split | None:
    from paceline.assemble.sim import Split, link_of

    if not num_prefill:
        return None
    return Split(
        num_prefill=num_prefill,
        link=link_of(link, engine),
        kv_bytes_per_token=engine.kv_bytes_per_token,
        num_layers=engine.spec.num_layers if overlap else 1,
    )


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
