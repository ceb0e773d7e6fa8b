"""`paceline bench`: a load against any OpenAI-compatible server, what it measured, and a report."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.errors import FAILURE, INTERRUPTED, clean_errors

if TYPE_CHECKING:
    from paceline.errors import PacelineError
    from paceline.lab.artefact import StoredRun
    from paceline.lab.experiment.process import Launch
    from paceline.lab.load import Progress, Target
    from paceline.lab.report.terminal import LiveProgress
    from paceline.lab.workload import WorkloadSpec

app = typer.Typer(invoke_without_command=True, no_args_is_help=False)

SERVER, LOAD, ANSWER = "Server", "Load", "Answer"
INVALID = 3
_WORST_FIRST = (FAILURE, INVALID, 2)  # exit codes: a failure stands whatever else is invalid or open
_NUM_REQUESTS = 100  # in 73 and more without a bad one, 95 % are shown
_NUM_IN_MATRIX = 64
_NOT_AGAIN = frozenset({"out", "name", "question", "report", "list_", "check"})  # no part of what was measured


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
    ready_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that a server which is loading is waited for.", rich_help_panel=SERVER)
    ] = 300.0,
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
        int | None,
        typer.Option(min=1, help="Requests a named workload aims at: 100, in a matrix 64.", rich_help_panel=LOAD),
    ] = None,
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
    """Send a workload to a server on schedule; print goodput, TTFT, TPOT and their intervals; keep every record.

    Ends with 0; 1 too many failed requests, or a gate failed; 2 a gate is inconclusive; 3 the numbers are invalid.
    """
    if context.invoked_subcommand is not None:
        return
    with clean_errors():
        from paceline.lab.workload import MATRIX

        if list_:
            for title, words in MATRIX.items():
                print(f"{title:14s} {words}")
            return
        from paceline.lab.experiment.bench import MATRIX_FILE, error_share, refuse_used, run_bench, the_server
        from paceline.lab.experiment.measure import MeasureOptions
        from paceline.lab.gates import exit_code, load_gate_spec
        from paceline.lab.load import LoadOptions

        _check_arguments(url, serve, workload, slo, num_requests)
        judges = load_gate_spec(gates) if gates else None
        folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{_slug(name or workload)}"
        refuse_used(folder)
        keys: dict[str, Any] = {"api_key": api_key, "tenant_keys": _pairs(tenant_key or [])}
        keys |= {"wait_ready_s": ready_timeout, "on_wait": say}
        where = url or _launch(model, serve, api_key)
        if not url:
            say(f"starting a server (log: {folder / 'server.log'})")
        with the_server(where, log=folder / "server.log", on_phase=say, model=model if url else None, **keys) as (
            target,
            start,
        ):
            _say_target(target)
            asked = num_requests or (_NUM_IN_MATRIX if workload == "matrix" else _NUM_REQUESTS)
            specs = _specs(target, workload, slo=slo, duration=duration, num_requests=asked)
            if check:
                _describe(specs, rate, seed)
                return
            options = MeasureOptions(
                name=name,
                question=question,
                calibrate=calibrate,
                start=start,
                command=command_of(context),
                load=LoadOptions(
                    num_processes=processes, max_concurrency=max_concurrency, timeout_s=timeout, keep_text=keep_text
                ),
            )
            stop = _stop_on_signals()  # not sooner: until here Ctrl-C just ends
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
                    on_failed=shown.failed,
                    stop=stop,
                )
        if runs or (folder / MATRIX_FILE).is_file():
            _conclude(folder, runs, many=len(specs) > 1, report=report)
        if stop.is_set():
            raise typer.Exit(INTERRUPTED)
        codes = [exit_code(run.verdict) for run in runs if run.verdict is not None] if judges else []
        codes += [INVALID for run in runs if any(c.invalidates for c in run.metrics.cautions)]
        codes += [FAILURE for run in runs if error_share(run) > max_error_share]
        codes += [FAILURE] if len(runs) < len(specs) else []  # a workload that could not be measured
        raise typer.Exit(worst(codes))


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
            fresh = run / "metrics.json.new"
            fresh.write_bytes(after)
            fresh.replace(stored)
        told = "equal" if after == before else "written" if write else "different"
        print(f"{told}: {len(after)} bytes from the records of {run}")
        if after != before and not write:
            raise typer.Exit(FAILURE)


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(help="Folder of the run to compare with.")],
    b: Annotated[Path, typer.Argument(help="Folder of the run that is judged.")],
    out: Annotated[Path | None, typer.Option(help="Write the page of the comparison to this file.")] = None,
) -> None:
    """Is run B better or worse than run A? Ratios with intervals, paired by request where the plans are equal.

    Ends with 0; 1 B is worse; 3 the two cannot be compared.
    """
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
            raise typer.Exit(INVALID)


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

    def failed(self, spec: WorkloadSpec, error: PacelineError) -> None:
        self._open.close()
        say(f"{spec.name} could not be measured: {error}")


def worst(codes: Iterable[int]) -> int:
    """One exit code for all."""
    found = set(codes)
    return next((code for code in _WORST_FIRST if code in found), 0)


def command_of(context: typer.Context) -> str:
    """The options that were given, as a command to give again: without keys, and without where results go."""
    words = ["paceline", "bench"]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in _NOT_AGAIN or source is None or source.name != "COMMANDLINE":
            continue
        value, flag = context.params[name], max(parameter.opts, key=len)
        if isinstance(value, bool):
            words.append(flag if value else parameter.secondary_opts[0])
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [flag, _shown(name, str(one))]
    return " ".join(words)


def _shown(name: str, value: str) -> str:
    """A value as a shell takes it; a key as the name of a variable."""
    if name == "api_key":
        return '"$API_KEY"'
    if name == "tenant_key":
        return f'{shlex.quote(value.partition("=")[0])}="$TENANT_KEY"'
    if name == "serve":
        from paceline.config.server import SECRETS

        flags = "|".join("--" + secret.replace("_", "-") for secret in SECRETS)
        value = re.sub(rf"({flags})(=|\s+)('[^']*'|\"[^\"]*\"|\S+)", r"\1\2SECRET", value)
    return shlex.quote(value)


def _check_arguments(url: str | None, serve: str, workload: str, slo: str, num_requests: int | None) -> None:
    """Before a server is started or asked: what would do nothing, and what cannot be read."""
    from paceline.errors import ConfigError
    from paceline.lab.workload import load_spec, named, parse_slo

    if url and serve:
        raise ConfigError("--serve is for a server that is started here", seen=f"--url {url} too", fix="leave one out")
    if num_requests is not None and _is_file(workload):
        raise ConfigError(
            "--num-requests is for named workloads", seen=workload, fix="set num_requests or duration_s in the file"
        )
    if _is_file(workload):
        load_spec(Path(workload))
    elif workload != "matrix":
        named(workload)
    if slo:
        parse_slo(slo)


def _is_file(workload: str) -> bool:
    return workload.endswith(".toml") or "/" in workload


def _specs(target: Target, workload: str, *, slo: str, duration: float | None, num_requests: int) -> list[WorkloadSpec]:
    from paceline.lab.experiment.sizing import measure_size
    from paceline.lab.workload import load_spec, named, parse_slo, scale, with_slo

    if _is_file(workload):
        specs = [load_spec(Path(workload))]
    else:
        specs = named(workload, measure_size(target), num_requests=num_requests)
    if slo:
        specs = [with_slo(spec, parse_slo(slo)) for spec in specs]
    if duration is not None:
        specs = [scale(spec, duration_s=duration) for spec in specs]
    return specs


def _launch(model: str | None, serve: str, api_key: str | None) -> Launch:
    from paceline.lab.experiment.process import Launch, paceline_argv

    options: dict[str, Any] = {"model": model} if model else {}
    extra = [*shlex.split(serve), *(["--api-key", api_key] if api_key else [])]
    return Launch(argv=paceline_argv(options, ("--no-access-log", *extra)), url="", api_key=api_key)


def _conclude(folder: Path, runs: list[StoredRun], *, many: bool, report: bool) -> None:
    """What a lint finds, the summary and, if asked for, the pages."""
    from paceline.cli.lint import keep_findings
    from paceline.lab.report import render_report
    from paceline.lab.report.stored import stored_summary
    from paceline.lab.report.summary import print_summary, run_summary

    found = keep_findings([run.path for run in runs])
    pages = [render_report(path) for path in [run.path for run in runs] + [folder] * many] if report else []
    if many:
        print_summary(stored_summary(folder))
    else:
        print_summary(run_summary(runs[0].info, runs[0].metrics, runs[0].verdict))
    for line in found:
        print(line)
    if pages:
        print(f"report: {pages[-1]}")
    print(f"records: {folder}")


def _describe(specs: list[WorkloadSpec], rate: float | None, seed: int) -> None:
    from paceline.lab.workload import make_plan, scale

    for spec in specs:
        plan = make_plan(scale(spec, rate=rate), seed=seed, salt="check")
        asked = [r.num_input_tokens for r in plan.requests], [r.num_output_tokens for r in plan.requests]
        mean_in, mean_out = (sum(values) / max(1, len(values)) for values in asked)
        span = f" in {plan.span_s:.0f} s" if plan.span_s > 0 else ""
        loop = " in a closed loop" if plan.closed_loop else ""
        words = f"{len(plan.requests)} requests{span}{loop}, {mean_in:.0f} tokens in and {mean_out:.0f} out on average"
        print(f"{spec.name}: {words}{f'; {spec.description}' if spec.description else ''}")


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
