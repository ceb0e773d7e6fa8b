"""The page of one run: verdict, what happened, latencies, parts of the load, the server's own account, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.contracts.artefact import RequestRecord, RunInfo, Verdict
from paceline.contracts.metrics import GroupMetrics, RunMetrics
from paceline.lab.report.charts.groups import attainment_chart, distinct_kinds, group_table, length_map
from paceline.lab.report.charts.latency import Series, latency_chart
from paceline.lab.report.charts.outcomes import outcome_chart
from paceline.lab.report.charts.overtime import latency_over_time, load_over_time
from paceline.lab.report.charts.server import server_charts
from paceline.lab.report.charts.split import split_chart, split_rows
from paceline.lab.report.cost import cost_section
from paceline.lab.report.findings import quality_section
from paceline.lab.report.glossary import glossary
from paceline.lab.report.page import Block, Cell, Page, Row, Section, Table, Words
from paceline.lab.report.provenance import measured_on, reproduction
from paceline.lab.report.requests import Requests, requests_of
from paceline.lab.report.verdict import (
    answer_of,
    cautions_of,
    gates_of,
    key_numbers,
    slo_words,
    what_would_change_it,
)
from paceline.lab.report.words import count, exact, interval_of, number, seconds, value_of

_TABLE = ("ttft", "ttft_send", "ttfa", "tpot", "itl", "icl", "icl_max", "e2e", "e2e_send", "tail", "lag")
_NAMES = {
    "ttft": "TTFT", "ttft_send": "TTFT from send", "ttfa": "TTFA", "tpot": "TPOT", "itl": "ITL", "icl": "ICL",
    "icl_max": "longest gap", "e2e": "E2E", "e2e_send": "E2E from send", "tail": "tail after the last token",
    "lag": "schedule lag",
}  # fmt: skip


def run_page(
    info: RunInfo,
    metrics: RunMetrics,
    records: Sequence[RequestRecord],
    server_metrics: Sequence[Mapping[str, Any]] = (),
    verdict: Verdict | None = None,
    *,
    folder: str = "RUN",
    quality: Mapping[str, Any] | None = None,
    lint: Section | None = None,
) -> Page:
    """`folder`: the run's, as a reader would name it in a command. `lint`: see `lint_section`."""
    requests = requests_of(info, records)
    gates = verdict.gates if verdict is not None else ()
    sections = [
        _load_section(metrics, requests),
        _latency_section(info, metrics, requests),
        _split_section(metrics, requests),
        _parts_section(metrics),
        _server_section(info, server_metrics),
        quality_section(gates, quality or {}),
        cost_section(info, metrics, gates),
        lint,
        measured_on(info),
        reproduction(info, folder),
        glossary(),
    ]
    answer, sentence = answer_of(info, metrics, verdict)
    return Page(
        kind="run",
        title=info.name,
        answer=answer,
        sentence=sentence,
        subtitle=_subtitle(info, metrics),
        question=info.question,
        what_would_change_it=what_would_change_it(gates),
        gates=gates_of(gates),
        numbers=key_numbers(info, metrics),
        cautions=cautions_of(metrics.cautions),
        sections=tuple(section for section in sections if section is not None),
    )


def _subtitle(info: RunInfo, metrics: RunMetrics) -> tuple[str, ...]:
    loop = "closed loop" if info.closed_loop else f"open loop, {number(metrics.offered_rps)} req/s"
    parts = (
        info.target.model,
        f"{info.target.kind} {info.target.version}".strip(),
        loop,
        f"window {metrics.window.seconds:g} s of {info.span_s:g} s",
        slo_words(info.slo),
        info.created,
        "" if info.status == "complete" else "partial: the run was interrupted",
    )
    return tuple(part for part in parts if part)


def _load_section(metrics: RunMetrics, requests: Requests) -> Section:
    outcomes = outcome_chart(metrics.whole)
    blocks: list[Block] = [outcomes] if outcomes else []
    blocks += load_over_time(requests, metrics.window)
    return Section("load", "Load", tuple(blocks), metrics.steady.sentence)


def _latency_section(info: RunInfo, metrics: RunMetrics, requests: Requests) -> Section:
    times, blocks = requests.times, []
    ttft, tpot, e2e = (_limits(info, term) for term in ("ttft_s", "tpot_s", "e2e_s"))
    closed = " In a closed loop both are the same." if info.closed_loop else ""
    blocks += [
        latency_chart(
            "ttft", "TTFT", "TTFT",
            [
                Series("from the schedule", requests.measured(times.ttft), "@a"),
                Series("from send", requests.measured(times.ttft_send), "@f", "dash"),
            ],
            ttft, f"Where the curves part, requests waited in the client before they were sent.{closed}",
        ),
        latency_over_time("ttft-time", "TTFT over time", requests, times.ttft, metrics.window, ttft,
                          "Each dot is a request at its planned time; the measured window is shaded."),
        latency_chart("tpot", "TPOT", "TPOT", [Series("TPOT", requests.measured(times.tpot), "@a")], tpot,
                      "Mean time per token after the first chunk, of each request."),
        latency_over_time("tpot-time", "TPOT over time", requests, times.tpot, metrics.window, tpot),
        latency_chart("e2e", "End to end", "E2E", [Series("E2E", requests.measured(times.e2e), "@a")], e2e,
                      "From the planned time to the last token."),
        latency_chart("icl-max", "Longest gap of a request", "longest gap between two chunks",
                      [Series("longest gap", requests.measured(times.icl_max), "@a")], _limits(info, "icl_max_s"),
                      "What a reader sees as a stall."),
        latency_table(metrics.whole),
    ]  # fmt: skip
    note = "Of the window's requests that ended well; the others are counted apart, above."
    return Section("latency", "Latency", tuple(block for block in blocks if block is not None), note)


def latency_table(group: GroupMetrics) -> Table:
    rows: list[Row] = []
    for name in [*_TABLE, *(key for key in group.latency if key not in _TABLE)]:
        latency = group.latency.get(name)
        if latency is None or (latency.n == 0 and latency.num_undefined == 0):
            continue
        marks = [
            Cell(value_of(e, "s"), interval_of(e, "s"), "" if e.value is not None else "muted")
            for e in (latency.p50, latency.p90, latency.p95, latency.p99)
        ]
        missing = f"{count(latency.num_undefined)} without" if latency.num_undefined else ""
        rows.append(
            (
                _NAMES.get(name, name),
                Cell(count(latency.n), missing),
                seconds(latency.mean),
                *marks,
                seconds(latency.max),
            )
        )
    columns = ("time", "n", "mean", "p50", "p90", "p95", "p99", "max")
    return Table(columns, tuple(rows), caption="Latencies with 95 % intervals")


def _split_section(metrics: RunMetrics, requests: Requests) -> Section:
    chart = split_chart(requests)
    table = split_rows(metrics.ttft_split)
    if chart is None:
        missing = Words("Not measured: this server sends no timings with its answers.", "missing")
        return Section("split", "Parts of TTFT", (missing,))
    return Section("split", "Parts of TTFT", (chart, table) if table else (chart,))


def _parts_section(metrics: RunMetrics) -> Section:
    charts = (attainment_chart(metrics.groups), length_map(metrics.groups))
    titles = {
        "class": "By class",
        "tenant": "By tenant",
        "stream": "By stream",
        "bucket": "By length",
        "turn": "By turn",
    }
    tables = [group_table(metrics.groups, kind, titles[kind]) for kind in distinct_kinds(metrics.groups)]
    blocks: list[Block] = [chart for chart in charts if chart is not None]
    return Section("parts", "Parts of the load", (*blocks, *(table for table in tables if table is not None)))


def _server_section(info: RunInfo, rows: Sequence[Mapping[str, Any]]) -> Section:
    charts = server_charts(rows, info.window)
    if not charts:
        missing = Words("Not measured: the server offered no metrics that this page knows.", "missing")
        return Section("server", "Server", (missing,))
    return Section(
        "server", "Server", charts, "The server's own metrics, read while the load ran, on the load's clock."
    )


def _limits(info: RunInfo, term: str) -> list[tuple[str, float]]:
    """(words, seconds) of each distinct limit; the class is named where they differ."""
    found: dict[float, list[str]] = {}
    for terms in info.slo:
        if (limit := getattr(terms, term)) is not None:
            found.setdefault(limit, []).append(terms.name)
    if len(found) == 1:
        limit = next(iter(found))
        return [(f"limit {exact(limit)}", limit)]
    return [(f"{', '.join(names)} {exact(limit)}", limit) for limit, names in sorted(found.items())]
