"""`paceline lint`: mistakes that cost goodput, and measurements that say less than they seem to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli.errors import FAILURE, USAGE, clean_errors
from paceline.cli.fleet import acceptance_of

if TYPE_CHECKING:
    from paceline.assemble.lint import Beside, Rule
    from paceline.assemble.server import ServerState
    from paceline.config import EngineConfig
    from paceline.contracts.lint import Evidence, Finding, LintResult

CONFIG, FLEET, BESIDE, ANSWER = "Configuration", "Fleet, as `paceline sim` has it", "Beside it", "Answer"
_ONLY_CONFIG = ("--set", "--workload", "--slo", "--rate", "--duration", "--device", "--client",
                "options of the fleet")  # fmt: skip


def lint(
    subject: Annotated[
        Path | None,
        typer.Argument(help="TOML of `paceline serve`, or folder of a run, matrix or experiment. None: the defaults."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE, wins over the file; repeatable.", rich_help_panel=CONFIG),
    ] = None,
    workload: Annotated[
        str, typer.Option(help="What will be sent: a name (`bench --list`) or a .toml file.", rich_help_panel=CONFIG)
    ] = "",
    slo: Annotated[str, typer.Option(help="Targets: ttft=1s,tpot=60ms,share=0.95.", rich_help_panel=CONFIG)] = "",
    rate: Annotated[float | None, typer.Option(min=0, help="Requests/s of it, in all.", rich_help_panel=CONFIG)] = None,
    duration: Annotated[float | None, typer.Option(min=0, help="Seconds of it.", rich_help_panel=CONFIG)] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Of the planner's table, or a .toml of one's own; none: here, measured.", rich_help_panel=CONFIG
        ),
    ] = "",
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="Devices that divide each matrix; wants --device.", rich_help_panel=FLEET)
    ] = 1,
    pipeline_parallel_size: Annotated[
        int, typer.Option(min=1, help="Devices that divide the layers.", rich_help_panel=FLEET)
    ] = 1,
    expert_parallel_size: Annotated[
        int, typer.Option(min=1, help="Groups that divide the experts.", rich_help_panel=FLEET)
    ] = 1,
    context_parallel_size: Annotated[
        int, typer.Option(min=1, help="Devices that divide positions and KV cache.", rich_help_panel=FLEET)
    ] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind the router.", rich_help_panel=FLEET)] = 1,
    router: Annotated[str, typer.Option(help="Its policy.", rich_help_panel=FLEET)] = "least-loaded",
    speculative: Annotated[
        str, typer.Option(help="Tokens a step yields with 1, 2, ... drafts: 1.7,2.2,2.5.", rich_help_panel=FLEET)
    ] = "",
    kv_tier: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=GIB,GBPS[,US][,shared]: a lower tier of the KV cache; repeatable.", rich_help_panel=FLEET
        ),
    ] = None,
    kv_tier_policy: Annotated[
        str, typer.Option(help="What comes back from tiers: priced, always or never.", rich_help_panel=FLEET)
    ] = "priced",
    against: Annotated[
        Path | None, typer.Option(help="Another configuration, or an earlier run.", rich_help_panel=BESIDE)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Recorded arrivals of the service.", rich_help_panel=BESIDE)
    ] = None,
    client: Annotated[
        Path | None, typer.Option(help="A run of the client that will send the workload.", rich_help_panel=BESIDE)
    ] = None,
    start_budget: Annotated[
        float | None, typer.Option(min=0, help="Seconds that a scale-up may take.", rich_help_panel=BESIDE)
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Findings as JSON.", rich_help_panel=ANSWER)] = False,
    evidence: Annotated[bool, typer.Option(help="Show each finding's numbers.", rich_help_panel=ANSWER)] = True,
    fail_on: Annotated[
        str, typer.Option(help="Least severity that ends with 1: warning, error or never.", rich_help_panel=ANSWER)
    ] = "error",
    list_: Annotated[bool, typer.Option("--list", help="Show all rules and end.")] = False,
    explain: Annotated[str, typer.Option(help="Show the rule of this code and end.")] = "",
) -> None:
    """Look for known mistakes in a configuration, or in what a run measured; each with evidence and a fix.

    Ends with 0; 1 there is a finding of the severity of --fail-on or above; 2 the subject cannot be read.
    """
    with clean_errors(otherwise=USAGE):
        from paceline.assemble.lint import RULES, Beside, rule_of, serving_of
        from paceline.contracts.lint import Severity, at_least

        floor = _floor(fail_on)
        if list_:
            print_rules(RULES, json_=json_)
            return
        if explain:
            print_rule(rule_of(explain))
            return
        beside = Beside(
            workload=workload, slo=slo, rate=rate, duration_s=duration, device=device, against=against, trace=trace,
            start_budget_s=start_budget, client=client,
            serving=serving_of(
                tp=tensor_parallel_size, pp=pipeline_parallel_size, ep=expert_parallel_size, cp=context_parallel_size,
                num_replicas=replicas, router=router, acceptance=acceptance_of(speculative),
                tiers=kv_tier or (), tier_policy=kv_tier_policy,
            ),
        )  # fmt: skip
        results = _look(subject, set_ or [], beside)
        if json_:
            import msgspec

            sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
        else:
            for result in results:
                print_result(result, evidence=evidence)
        found = [finding for result in results for finding in result.findings]
        if floor and any(at_least(finding.severity, Severity(floor)) for finding in found):
            raise typer.Exit(FAILURE)


def _floor(word: str) -> Literal["", "warning", "error"]:
    from paceline.errors import ConfigError

    if word in ("warning", "error"):
        return word  # type: ignore[return-value]
    if word == "never":
        return ""
    raise ConfigError("--fail-on was not understood", seen=word, expected="warning, error or never")


def _look(subject: Path | None, settings: list[str], beside: Beside) -> tuple[LintResult, ...]:
    from paceline.assemble.lint import ALONE, lint_config, lint_folder
    from paceline.config import parse_assignment
    from paceline.errors import ConfigError

    if subject is not None and subject.is_file() and subject.name in ("run.json", "experiment.json", "matrix.json"):
        subject = subject.parent
    if subject is None or not subject.is_dir():
        return (lint_config(subject, dict(map(parse_assignment, settings)), beside),)
    numbers = (beside.rate is not None, beside.duration_s is not None)
    given = (settings, beside.workload, beside.slo, *numbers, beside.device, beside.client, beside.serving != ALONE)
    if wrong := [name for name, value in zip(_ONLY_CONFIG, given, strict=True) if value]:
        raise ConfigError("a run is looked at as it was", seen=", ".join(wrong), fix="give these with a configuration")
    return lint_folder(subject, beside)


def print_result(result: LintResult, *, evidence: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for finding in result.findings:
        _print_finding(console, finding, evidence=evidence)
    counts = f"{len(result.findings)} finding{'' if len(result.findings) == 1 else 's'}"
    told = f"{result.name}: {counts}, {len(result.judged)} rules judged, {len(result.skipped)} skipped"
    console.print(told, markup=False)
    for code, why in result.skipped.items():
        console.print(f"  {code} {why}", style="dim", markup=False)


_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def _print_finding(console: Any, finding: Finding, *, evidence: bool) -> None:
    about = f" [{finding.subject}]" if finding.subject else ""
    console.print(f"{finding.code} {finding.severity}: {finding.title}{about}", style=_STYLES[finding.severity],
                  markup=False)  # fmt: skip
    console.print(f"  {finding.sentence}", markup=False)
    if evidence:
        for one in finding.evidence:
            line = f"    {one.name}: {_shown(one)}"
            console.print(f"{line}  ({one.origin})", style="dim", markup=False)
    console.print(f"  fix: {finding.fix.words}", markup=False)
    if finding.fix.gain:
        console.print(f"  gain: {finding.fix.gain}", markup=False)


def _shown(one: Evidence) -> str:
    if isinstance(one.value, str):
        return one.value
    if one.unit == "bytes":
        return f"{one.value / 2**20:,.4g} MiB"
    value = f"{one.value:,.4g}" if isinstance(one.value, float) else f"{one.value:,}"
    return f"{value} {one.unit}".rstrip()


def print_rules(rules: Sequence[Rule], *, json_: bool) -> None:
    if json_:
        import msgspec

        rows = [{"code": r.code, "title": r.title, "decided_from": list(r.sources)} for r in rules]
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
        return
    for rule in rules:
        print(f"{rule.code}  {rule.title:42s}  {', '.join(rule.sources)}")


def print_rule(rule: Rule) -> None:
    print(f"{rule.code}: {rule.title}\n\n{rule.what}\n")
    print(f"evidence: {rule.evidence}\nfix: {rule.fix}\ndecided from: {', '.join(rule.sources)}")


def look_for_mistakes(config: EngineConfig, state: ServerState) -> None:
    """What `serve` says of its own configuration once it is ready: a line each, warnings and worse. In a thread of its
    own, for requests are welcome already; it ends by itself, before the process does."""
    import threading

    threading.Thread(target=_warn, args=(config, state), name="lint").start()


def _warn(config: EngineConfig, state: ServerState) -> None:
    from paceline.assemble.lint import lint_server
    from paceline.contracts.lint import Severity, at_least
    from paceline.errors import PacelineError

    try:
        result = lint_server(config, state.report, state.tenants.classes)
    except PacelineError as error:  # a model's file that went away since
        say(f"lint: nothing was looked at: {error.message}")
        return
    for finding in result.findings:
        if at_least(finding.severity, Severity.WARNING):
            about = f" (class {finding.subject})" if finding.subject else ""
            say(f"{finding.code} {finding.severity}{about}: {finding.sentence} fix: {finding.fix.words}")


def keep_findings(folders: Sequence[Path]) -> list[str]:
    """Writes lint.json into each run's folder, where its report finds it; what was found, a line each. The lab does not
    import the planner, so the command joins the two."""
    from paceline.assemble.lint import lint_folder, write_findings
    from paceline.errors import PacelineError

    lines = []
    for folder in folders:
        try:
            (result,) = lint_folder(folder)
        except PacelineError as error:
            lines.append(f"lint: {folder} was not looked at: {error.message}")
            continue
        try:
            write_findings(folder, result)
        except OSError as error:
            lines.append(f"lint: no lint.json beside {folder}: {error.strerror or error}")
        lines += [f"lint: {f.code} {f.severity} in {result.name}: {f.title} ({f.fix.words})" for f in result.findings]
    return lines


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
