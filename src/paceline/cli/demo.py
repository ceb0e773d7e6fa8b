"""`paceline demo`: a server on the embedded model, a real mixed load through the stock client, and what it measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import EngineConfig, engine_options
from paceline.errors import EngineError

QUESTION = "In two sentences: why does a library lend books for four weeks only?"


@engine_options
def demo(
    report: Annotated[Path, typer.Option("--report", help="Folder of the report.")] = Path("out/demo"),
    load_seed: Annotated[int, typer.Option("--load-seed", help="Seed of the load.")] = 1,
    rate: Annotated[float, typer.Option("--rate", help="Calls per second (Poisson).")] = 1.0,
    *,
    config: EngineConfig,
) -> None:
    """Start a server, send it 64 mixed calls (short, long, shared prefix, sampled, one cancelled), report, stop it."""
    from paceline.cli.demo_drive import answer, drive, require_openai
    from paceline.cli.demo_load import demo_load
    from paceline.cli.demo_report import memory_lines, problems, render, summarise
    from paceline.cli.demo_server import demo_server

    require_openai()
    report.mkdir(parents=True, exist_ok=True)
    print(f"starting a server for {config.model.model} (log: {report / 'server.log'})", flush=True)
    with demo_server(config, report / "server.log") as server:
        about = server.get("/v1/internal/config")
        model = server.get("/v1/models")["data"][0]["id"]
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in about["phases"].items())
        memory = memory_lines(about["ledger"])
        print("\n".join([f"ready at {server.url}: {phases}", "", *memory, ""]), flush=True)
        jobs = demo_load(load_seed, rate)
        print(f"sending {len(jobs)} calls at {rate:g} calls/s, every answer streamed ...", flush=True)
        timelines = drive(server.url, model, jobs)
        engine = server.get("/v1/internal/stats")["engine"]
        if engine is None:
            raise server.trouble("its engine does not answer")
        summary = summarise(jobs, timelines, engine)
        lines = render(summary)
        print("\n".join([*lines, "", f"> {QUESTION}"]), flush=True)
        text = answer(server.url, model, QUESTION, max_tokens=64)
        status = server.stop()
    print(f"\nthe server stopped with status {status}")
    (report / "report.json").write_text(json.dumps({**summary, "load_phases_s": about["phases"]}, indent=2))
    body = ["# paceline demo", "", "```text", *lines, "", *memory, "```", "", f"> {QUESTION}", "", text, ""]
    (report / "report.md").write_text("\n".join(body))
    print(f"report: {(report / 'report.md').resolve()}")
    wrong = [*problems(summary), *([] if text else ["the answer was empty"])]
    if status:
        wrong.append(f"the server ended with status {status}")
    if wrong:
        raise EngineError("the demo did not work", seen="; ".join(wrong), fix=f"see {report / 'server.log'}")
