"""The end of a run on a terminal: verdict, numbers with intervals, cautions, where the report is. Text for rich."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.contracts.artefact import Answer, Caution, GateResult, RunInfo, Verdict
from paceline.contracts.metrics import GroupMetrics, RunMetrics
from paceline.lab.artefact.comparison import Comparison
from paceline.lab.report.compare_page import figure_name
from paceline.lab.report.matrix_page import matrix_page, matrix_table
from paceline.lab.report.page import Cell
from paceline.lab.report.verdict import answer_of, cautions_of, gates_of, key_numbers
from paceline.lab.report.words import count, interval_of, ratio, seconds, value_of

if TYPE_CHECKING:
    from paceline.lab.experiment.bench import MatrixResult
    from paceline.lab.experiment.results import ExperimentResult

_STYLES = {
    Answer.PASS: "bold green",
    Answer.FAIL: "bold red",
    Answer.INVALID: "bold red",
    Answer.INCONCLUSIVE: "bold yellow",
}


def run_summary(
    info: RunInfo, metrics: RunMetrics, verdict: Verdict | None = None, report: Path | str | None = None
) -> RenderableType:
    """Print it with `rich.console.Console.print`."""
    parts: list[RenderableType] = [_verdict(*answer_of(info, metrics, verdict))]
    if verdict is not None and verdict.gates:
        parts.append(_gates(verdict.gates))
    parts.append(_numbers(info, metrics))
    classes = [group for group in metrics.groups if group.kind == "class"]
    if len(classes) > 1:
        parts.append(_classes(classes))
    parts += _cautions(metrics.cautions)
    return Group(*parts, *_report(report))


def comparison_summary(comparison: Comparison, report: Path | str | None = None) -> RenderableType:
    """B against A."""
    table = _table("", "A", "B", "B over A", "95 % interval", "answer")
    for line in comparison.lines:
        name, unit = figure_name(line.figure)
        style = {"better": "green", "worse": "red"}.get(line.answer, "")
        _row(
            table,
            name, value_of(line.a, unit), value_of(line.b, unit), ratio(line.ratio.value) if unit != "share" or
            line.ratio.unit == "x" else value_of(line.ratio), interval_of(line.ratio), Text(line.answer, style=style),
        )  # fmt: skip
    parts: list[RenderableType] = [said(comparison.sentence, style="bold")]
    if comparison.lines:
        parts.append(table)
    parts += [said(f"· {reason}", style="yellow") for reason in comparison.reasons]
    return Group(*parts, *_cautions(comparison.cautions), *_report(report))


def experiment_summary(result: ExperimentResult, report: Path | str | None = None) -> RenderableType:
    """The ladder as a table, the best configuration and how to serve it."""
    parts: list[RenderableType] = [said(result.answer or result.best_sentence, style="bold")]
    table = _table(
        "configuration", "changes", "highest rate", "goodput", "attainment", "TTFT p95", "TPOT p95", "against parent"
    )
    for node in result.nodes:
        edge = next((e for e in result.edges if e.child == node.name), None)
        gain = next((r for r in edge.ratios if r.figure == result.decides), None) if edge else None
        figure = node.figures.get
        cells = [
            value_of(estimate, unit) if estimate is not None else "–"
            for estimate, unit in (
                (node.rate.max_rate_rps if node.rate else None, "req/s"), (figure("goodput_rps"), "req/s"),
                (figure("attainment"), "share"), (figure("ttft_p95_s"), "s"), (figure("tpot_p95_s"), "s"),
            )
        ]  # fmt: skip
        told = f"{ratio(gain.ratio.value)} {interval_of(gain.ratio, 'ratio')}" if gain is not None else "–"
        name = said(node.name, style="bold green" if node.name == result.best else "")
        _row(table, name, node.failed or (edge.group if edge else "base"), *cells, told)
    parts.append(table)
    if result.answer and result.best_sentence:
        parts.append(said(result.best_sentence))
    if result.serve_command:
        parts.append(said(f"serve it: {result.serve_command}"))
    return Group(*parts, *_cautions(result.cautions), *_report(report))


def matrix_summary(result: MatrixResult, report: Path | str | None = None) -> RenderableType:
    """One line for each workload."""
    page = matrix_page(result)
    table = _table("workload", "targets met", "goodput", "attainment", "TTFT p95", "TPOT p95")
    for row, cells in zip(result.rows, matrix_table(result, "").rows, strict=True):
        told = [cell.text if isinstance(cell, Cell) else cell for cell in cells]
        answer = said(told[1], style=_STYLES.get(row.answer, "dim"))
        _row(table, told[0], answer, *told[4:6], told[7], told[9])
    failed = [said(f"! {row.name} was not measured: {row.reason}", style="red") for row in result.rows if row.reason]
    warned = [said(f"! {w.sentence}", style="red" if w.severe else "yellow") for w in page.cautions]
    return Group(said(page.sentence, style="bold"), table, *failed, *warned, *_report(report))


def print_summary(content: RenderableType, console: Console | None = None) -> None:
    """To standard output, or where `console` writes."""
    (console or Console()).print(content, highlight=False)


def _verdict(answer: Answer | None, sentence: str) -> Text:
    if answer is None:
        return said(sentence, style="bold")
    return Text.assemble((answer.value.upper(), _STYLES.get(answer, "bold")), "  ", said(sentence, "bold"))


def _gates(gates: Sequence[GateResult]) -> Table:
    table = _table("gate", "", "value", "95 % interval", "limit", "why")
    answers = {gate.value: style for gate, style in _STYLES.items()}
    for gate in gates_of(gates):
        answer = Text(gate.answer.value, style=answers.get(gate.answer.value, "dim"))
        _row(
            table, f"{gate.name} {gate.subject}".rstrip(), answer, gate.value, gate.interval, gate.limit, gate.sentence
        )
    return table


def _numbers(info: RunInfo, metrics: RunMetrics) -> Table:
    table = _table("", "value", "95 % interval", "")
    for item in key_numbers(info, metrics):
        style = "red" if item.tone == "bad" else "dim" if item.tone == "muted" else ""
        _row(
            table,
            item.label,
            said(f"{item.value} {item.unit}".rstrip(), style=style),
            item.interval,
            said(item.note, style="dim"),
        )
    return table


def _classes(groups: Sequence[GroupMetrics]) -> Table:
    table = _table("class", "requests", "goodput", "attainment", "TTFT p95", "TPOT p95")
    for group in groups:
        tails = [_tail(group, name) for name in ("ttft", "tpot")]
        attained = f"{value_of(group.attainment, 'share')} {interval_of(group.attainment, 'share')}"
        _row(table, group.name, count(group.num_requests), value_of(group.goodput_rps, "req/s"), attained, *tails)
    return table


def _tail(group: GroupMetrics, name: str) -> str:
    latency = group.latency.get(name)
    if latency is None:
        return "–"
    return seconds(latency.p95.value) if latency.p95.value is not None else latency.p95.reason or "–"


def _cautions(cautions: Sequence[Caution]) -> list[RenderableType]:
    return [said(f"! {item.sentence}", style="red" if item.severe else "yellow") for item in cautions_of(cautions)]


def _report(report: Path | str | None) -> list[RenderableType]:
    return [] if report is None else [Text.assemble(("report ", "dim"), said(str(report)))]


def _row(table: Table, *cells: str | Text) -> None:
    """Rich would read a string as markup."""
    table.add_row(*(cell if isinstance(cell, Text) else said(cell) for cell in cells))


def said(text: str, style: str = "") -> Text:
    """Words from outside as they are: no markup, and nothing that a terminal takes for a command."""
    return Text("".join(c if c.isprintable() or c in "\n\u00a0" else "�" for c in text), style=style)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for i, column in enumerate(columns):
        words = i == 0 or column in ("why", "answer", "changes") or (i == len(columns) - 1 and column == "")
        table.add_column(column, justify="left" if words or column == "" else "right", overflow="fold")
    return table
