"""`paceline bench`: a load against any OpenAI-compatible server, what it measured, and a report."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.errors import FAILURE, INTERRUPTED, clean_errors

if TYPE_CHECKING:
    from paceline.lab.artefact import StoredRun
    from paceline.lab.experiment.process import Launch
    from paceline.lab.load import Progress, Target
    from paceline.lab.report.terminal import LiveProgress
    from paceline.lab.workload import WorkloadSpec

app = typer.Typer(invoke_without_command=True, no_args_is_help=False)

SERVER, LOAD, ANSWER = "Server", "Load", "Answer"


@app.callback()
def bench(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(help="Server to measure. Without one, one is started on --model.", rich_help_panel=SERVER),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Served name, or the model to start.", rich_help_panel=SERVER)
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token.", rich_help_panel=SERVER)] = None,
    tenant_key: Annotated[
        list[str] | None, typer.Option(help="NAME=KEY, for streams of that tenant; repeatable.", rich_help_panel=SERVER)
    ] = None,
    serve: Annotated[
        str, typer.Option(help="Options of the server that is started, as on a command line.", rich_help_panel=SERVER)
    ] = "",
    workload: Annotated[
        str, typer.Option(help="A name (--list), a .toml file, or matrix for all names.", rich_help_panel=LOAD)
    ] = "steady",
    slo: Annotated[
        str,
        typer.Option(help="Targets: ttft=1s,tpot=60ms,share=0.95. Default: the workload's own.", rich_help_panel=LOAD),
    ] = "",
    rate: Annotated[float | None, typer.Option(min=0, help="Requests/s, in all.", rich_help_panel=LOAD)] = None,
    duration: Annotated[float | None, typer.Option(min=0, help="Seconds of the load.", rich_help_panel=LOAD)] = None,
    num_requests: Annotated[
        int, typer.Option(min=1, help="Requests a named workload aims at.", rich_help_panel=LOAD)
    ] = 64,
    seed: Annotated[int, typer.Option(help="Of the plan and the texts.", rich_help_panel=LOAD)] = 0,
    max_concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="In flight at most; waiting for a place counts.", rich_help_panel=LOAD),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=0, help="Of the load generator; default by rate.", rich_help_panel=LOAD)
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.", rich_help_panel=LOAD)] = 600.0,
    calibrate: Annotated[
        bool, typer.Option(help="Measure the client against a null server first.", rich_help_panel=LOAD)
    ] = True,
    gates: Annotated[
        Path | None, typer.Option(help="TOML of gates; their answer is the exit status.", rich_help_panel=ANSWER)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results, a new one.", rich_help_panel=ANSWER)] = None,
    name: Annotated[str, typer.Option(help="Of the run; default the workload's.", rich_help_panel=ANSWER)] = "",
    question: Annotated[str, typer.Option(help="What this run is to answer.", rich_help_panel=ANSWER)] = "",
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Keep the answers.", rich_help_panel=ANSWER)] = False,
    report: Annotated[bool, typer.Option(help="Write report.html.", rich_help_panel=ANSWER)] = True,
    max_error_share: Annotated[
        float, typer.Option(min=0, max=1, help="More failed requests than this: exit status 1.", rich_help_panel=ANSWER)
    ] = 0.05,
    list_: Annotated[bool, typer.Option("--list", help="Show the named workloads and end.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Show what would be sent and end.")] = False,
) -> None:
    """Send a workload to a server on schedule; print goodput, TTFT, TPOT and their intervals; keep every record."""
    if context.invoked_subcommand is not None:
        return
    with clean_errors():
        from paceline.lab.workload import MATRIX

        if list_:
            for title, words in MATRIX.items():
                print(f"{title:14s} {words}")
            return
        from paceline.lab.experiment.bench import error_share, run_bench, the_server
        from paceline.lab.experiment.measure import MeasureOptions
        from paceline.lab.gates import exit_code, load_gate_spec
        from paceline.lab.load import LoadOptions
        from paceline.lab.report.summary import print_summary, run_summary

        judges = load_gate_spec(gates) if gates else None
        folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{_slug(name or workload)}"
        stop = _stop_on_signals()
        keys = {"api_key": api_key, "tenant_keys": _pairs(tenant_key or [])}
        where = url or _launch(model, serve, api_key)
        if not url:
            say(f"starting a server (log: {folder / 'server.log'})")
        with the_server(where, log=folder / "server.log", on_phase=say, model=model if url else None, **keys) as (
            target,
            start,
        ):
            _say_target(target)
            specs = _specs(target, workload, slo=slo, duration=duration, num_requests=num_requests)
            if check:
                _describe(specs, rate, seed)
                return
            options = MeasureOptions(
                name=name,
                question=question,
                calibrate=calibrate,
                start=start,
                load=LoadOptions(
                    num_processes=processes, max_concurrency=max_concurrency, timeout_s=timeout, keep_text=keep_text
                ),
            )
            with Shown(len(specs)) as shown:
                runs = run_bench(
                    target,
                    specs,
                    seed=seed,
                    out=folder,
                    rate=rate,
                    options=options,
                    gates=judges,
                    on_begin=shown.begin,
                    on_progress=shown.progress,
                    on_end=shown.end,
                    stop=stop,
                )
        for run in runs:
            print_summary(run_summary(run.info, run.metrics, run.verdict))
        if report:
            _report(folder, runs, many=len(specs) > 1)
        print(f"records: {folder}")
        if stop.is_set():
            raise typer.Exit(INTERRUPTED)
        if not runs:
            raise typer.Exit(FAILURE)
        codes = [exit_code(run.verdict) for run in runs if run.verdict is not None] if judges else []
        codes += [3 for run in runs if any(c.invalidates for c in run.metrics.cautions)]
        codes += [FAILURE for run in runs if error_share(run) > max_error_share]
        if any(codes):
            raise typer.Exit(max(codes))


@app.command("recompute")
def recompute(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    write: Annotated[bool, typer.Option("--write", help="Put the new metrics in place of the old ones.")] = False,
) -> None:
    """Compute a run's metrics again from its raw records, and say whether they are the same bytes."""
    with clean_errors():
        from paceline.lab.artefact import recompute as compute_again

        stored = run / "metrics.json"
        before = stored.read_bytes() if stored.is_file() else None
        after = compute_again(run)
        if write:
            stored.write_bytes(after)
        print(f"{'equal' if after == before else 'different'}: {len(after)} bytes from the records of {run}")
        if after != before and not write:
            raise typer.Exit(FAILURE)


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="Folder of the run to compare with.")],
    b: Annotated[Path, typer.Argument(help="Folder of the run that is judged.")],
    out: Annotated[Path | None, typer.Option(help="Write the page of the comparison to this file.")] = None,
) -> None:
    """Is run B better or worse than run A? Ratios with intervals, paired by request where the plans are equal."""
    with clean_errors():
        from paceline.lab.artefact import compare_runs, read_run
        from paceline.lab.report import render_comparison
        from paceline.lab.report.summary import comparison_summary, print_summary

        found = compare_runs(read_run(a), read_run(b))
        page = render_comparison(a, b, out) if out is not None else None
        print_summary(comparison_summary(found, page))
        if found.answer == "worse":
            raise typer.Exit(FAILURE)
        if found.answer == "not comparable":
            raise typer.Exit(3)


# --- parts


class Shown:
    """Live progress of the run that is under way; the next one takes its place."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs = num_runs
        self._open = ExitStack()
        self._live: LiveProgress | None = None

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def begin(self, spec: WorkloadSpec, number: int) -> None:
        from paceline.lab.report.terminal import LiveProgress

        self._open.close()
        title = spec.name if self._num_runs == 1 else f"{number}/{self._num_runs} {spec.name}"
        self._live = self._open.enter_context(LiveProgress(title))

    def progress(self, progress: Progress) -> None:
        assert self._live is not None, "begin comes first"
        self._live(progress)

    def end(self, _run: StoredRun) -> None:
        self._open.close()


def _specs(target: Target, workload: str, *, slo: str, duration: float | None, num_requests: int) -> list[WorkloadSpec]:
    from paceline.lab.experiment.sizing import measure_size
    from paceline.lab.workload import load_spec, named, parse_slo, scale, with_slo

    if workload.endswith(".toml") or "/" in workload:
        specs = [load_spec(Path(workload))]
    else:
        if workload != "matrix":
            named(workload)  # an unknown name is refused before the server is asked anything
        specs = named(workload, measure_size(target), num_requests=num_requests)
    if slo:
        specs = [with_slo(spec, parse_slo(slo)) for spec in specs]
    if duration is not None:
        specs = [scale(spec, duration_s=duration) for spec in specs]
    return specs


def _launch(model: str | None, serve: str, api_key: str | None) -> Launch:
    import shlex

    from paceline.lab.experiment.process import Launch, paceline_argv

    options: dict[str, Any] = {"model": model} if model else {}
    extra = [*shlex.split(serve), *(["--api-key", api_key] if api_key else [])]
    return Launch(argv=paceline_argv(options, ("--no-access-log", *extra)), url="", api_key=api_key)


def _report(folder: Path, runs: list[StoredRun], *, many: bool) -> None:
    from paceline.lab.report import render_report

    for run in runs:
        page = render_report(run.path)
        if not many:
            print(f"report: {page}")
    if many:
        print(f"report: {render_report(folder)}")


def _describe(specs: list[WorkloadSpec], rate: float | None, seed: int) -> None:
    from paceline.lab.workload import make_plan, scale

    for spec in specs:
        plan = make_plan(scale(spec, rate=rate), seed=seed, salt="check")
        asked = [r.num_input_tokens for r in plan.requests], [r.num_output_tokens for r in plan.requests]
        mean_in, mean_out = (sum(values) / max(1, len(values)) for values in asked)
        print(
            f"{spec.name}: {len(plan.requests)} requests in {plan.span_s:.0f} s, {mean_in:.0f} tokens in and "
            f"{mean_out:.0f} out on average; {spec.description}"
        )


def _say_target(target: Target) -> None:
    info = target.info
    length = f", up to {info.max_model_len} tokens" if info.max_model_len else ""
    say(f"{info.kind} {info.version} at {info.url}: {info.model}{length}")


def _pairs(given: list[str]) -> dict[str, str]:
    from paceline.errors import ConfigError

    pairs = dict(part.partition("=")[::2] for part in given)
    if not all(name and key for name, key in pairs.items()):
        raise ConfigError("a tenant's key was not understood", expected="--tenant-key NAME=KEY")
    return pairs


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(text).stem if text.endswith(".toml") else text).strip("-") or "run"


def _stop_on_signals() -> Any:
    from paceline.cli.tune import stop_on_signals

    return stop_on_signals()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
