"""`paceline plan`: how a model should lie over devices, what that carries, and why not otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.errors import FAILURE, clean_errors

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.planner import Plan


def plan(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Alias, folder, .gguf file, fetched hub id, or a model known by sizes.")
    ] = "smollm2-135m",
    device: Annotated[
        str, typer.Option(help="Device of the table (--list shows it), a .toml of one's own, or here: this machine.")
    ] = "here",
    devices: Annotated[int, typer.Option(help="Devices over all nodes.", min=1)] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes they are on.", min=1)] = 1,
    input: Annotated[str, typer.Option(help="Prompt tokens: 1000, p50=800,p99=6000, min=..,max=.. or file=..")] = "256",
    output: Annotated[str, typer.Option(help="Output tokens, in the same words.")] = "128",
    rate: Annotated[
        float | None, typer.Option(help="Requests per second to carry; left out: as many as can be.")
    ] = None,
    slo: Annotated[str, typer.Option(help="Targets, for example ttft=500ms,tpot=40ms,share=0.95.")] = (
        "ttft=1s,tpot=100ms"
    ),
    price: Annotated[float | None, typer.Option(help="Price of one device for an hour.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="bf16, fp8, int8, int4, nvfp4 or mxfp4; left out: as published.")
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16, float32 or int8.")] = "auto",
    cached_share: Annotated[float, typer.Option(help="Share of prompt tokens found in the prefix cache.")] = 0.0,
    arrival_cv: Annotated[float, typer.Option(help="Variation of the gaps between arrivals; 1 is Poisson.")] = 1.0,
    profile: Annotated[str, typer.Option(help="interactive, batch or long-context.")] = "interactive",
    acceptance: Annotated[
        str, typer.Option(help="Speculation: measured tokens per step for 1, 2, ... drafts, as 1.9,2.7,3.4.")
    ] = "",
    draft_ms: Annotated[float, typer.Option(help="Milliseconds of one step of the drafter.", min=0)] = 0.0,
    expert_imbalance: Annotated[
        float | None, typer.Option(help="Busiest expert rank over the mean, as measured; left out: 1.2, assumed.")
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(
            "--verify",
            help="Simulate so many of the best layouts, however long it takes; left out: 3, where that is short.",
            min=0,
        ),
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Simulate none: the predicted order stands.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the configuration for `paceline serve --config`.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the plan as one page.")] = None,
    list_known: Annotated[
        bool, typer.Option("--list", help="Models and devices known by their sizes; then end.")
    ] = False,
) -> None:
    """Judge every layout of a fleet against targets, from the cost model and the memory ledger that engines use."""
    with clean_errors():
        from rich.console import Console

        console = Console()
        if list_known:
            print_known(console)
            return
        from paceline.assemble.plan import Asked, read_profile
        from paceline.assemble.plan import plan as make

        asked = Asked(
            model=model,
            device=device,
            devices=devices,
            nodes=nodes,
            input=input,
            output=output,
            rate=rate,
            slo=slo,
            price=price,
            weights=weights,
            kv_cache_dtype=kv_cache_dtype,
            cached_share=cached_share,
            arrival_cv=arrival_cv,
            profile=read_profile(profile),
            acceptance=acceptance,
            draft_ms=draft_ms,
            expert_imbalance=expert_imbalance,
            verify=0 if no_verify else verify,
        )
        found = make(asked)
        show(console, found)
        write(found, out, html)
        if found.chosen is None:
            raise typer.Exit(FAILURE)


def show(console: Console, found: Plan) -> None:
    """Everything, the answer last."""
    from paceline.assemble import plan_words as words

    for name, value in words.facts(found):
        console.print(f"{name}: {value}", highlight=False, markup=False)
    _table(console, "memory of the fullest device", ("part", "bytes", "how"), words.ledger_rows(found))
    title = f"layouts, best first ({found.search.num_judged} judged with their chunk sizes)"
    _table(console, title, words.LAYOUT_COLUMNS, words.layout_rows(found))
    if found.chosen is not None:
        console.print(words.LAYOUT_LEGEND, highlight=False, style="dim")
    if simulated := words.simulated_rows(found):
        _table(console, "the best, simulated", words.SIMULATED_COLUMNS, simulated)
        console.print(words.simulated_legend(found), highlight=False, style="dim")
    _table(console, "layouts that do not fit", ("layout", "why"), words.rejected_rows(found))
    _table(console, "why", ("question", "in numbers", "", "why"), words.step_rows(found))
    _table(console, "speculation", ("rows", "drafts", "gain", "by number of drafts"), words.draft_rows(found))
    for note in found.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(words.sentence(found), highlight=False, markup=False, style="bold")


def write(found: Plan, out: Path | None, html: Path | None) -> None:
    """The two files, where they were asked for: the page always, then the configuration. Raises UnsupportedError where
    the plan cannot be served."""
    from paceline.planner import config_text, why_not_served

    config = ""
    if found.chosen is not None and found.memory is not None and not why_not_served(found.question, found.chosen):
        config = config_text(found.question, found.chosen, found.memory.config)
    if html is not None:
        from paceline.assemble.plan_page import write_plan_page

        write_plan_page(found, html, config=config)
        typer.echo(f"page: {html}", err=True)
    if out is None:
        return
    if found.chosen is None or found.memory is None:
        typer.echo(f"nothing fits: {out} is not written", err=True)
        return
    out.write_text(config or config_text(found.question, found.chosen, found.memory.config), encoding="utf-8")
    typer.echo(f"configuration: {out}", err=True)


SHORT = (
    "layout", "chunk", "rows", "good/s", "1 lost", "TTFT p95", "TPOT", "cost/M", "part", "bytes", "offered/s",
    "in time", "preempted",
)  # fmt: skip


def print_known(console: Console) -> None:
    """The two tables, each row with its source."""
    from paceline.cost.memory import format_bytes
    from paceline.planner import CARDS, DEVICES

    models = [
        (name, f"{c.spec.num_parameters / 1e9:.4g} G", c.weights, c.hub_id, c.left_out) for name, c in CARDS.items()
    ]
    _table(console, "models", ("name", "weights", "format", "config.json of", "left out"), models)
    devices = [
        (
            name,
            format_bytes(c.spec.memory_bytes),
            f"{c.spec.memory_gbps:g} GB/s",
            f"{c.spec.gflops / 1e3:g}" + ("" if c.fp8_gflops is None else f" / {c.fp8_gflops / 1e3:g}"),
            f"{c.link} {c.link_gbps:g} GB/s",
            c.source,
            c.assumed,
        )
        for name, c in DEVICES.items()
    ]
    columns = ("name", "memory", "bandwidth", "dense TFLOP/s 16 / 8 bit", "link, one way", "source", "assumed")
    _table(console, "devices", columns, devices)


def _table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in SHORT)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
