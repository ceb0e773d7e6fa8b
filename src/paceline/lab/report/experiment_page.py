"""The page of an experiment: the answer, the ladder, what each edge changed and did, rates, points, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.lab.report.charts.base import DASHES, SERIES
from paceline.lab.report.charts.latency import Series, latency_chart
from paceline.lab.report.charts.rates import Curve, Level, rate_charts
from paceline.lab.report.charts.starts import start_chart
from paceline.lab.report.findings import quality_section
from paceline.lab.report.glossary import glossary
from paceline.lab.report.ladder_section import FIGURES, best_node, figure_of, ladder_section, path_to_best
from paceline.lab.report.page import Block, Cell, Code, FactSheet, KeyNumber, Page, Section, Table, Words
from paceline.lab.report.provenance import config_table, fingerprint_facts
from paceline.lab.report.requests import Requests
from paceline.lab.report.toml import toml_of
from paceline.lab.report.verdict import cautions_of, gates_of, slo_words
from paceline.lab.report.words import (
    count,
    exact,
    in_parts,
    interval_of,
    number,
    seconds,
    share,
    value_of,
)

if TYPE_CHECKING:
    from paceline.lab.experiment.results import EdgeResult, ExperimentResult, PointResult, RateResult


def experiment_page(
    result: ExperimentResult,
    *,
    requests: Mapping[str, Requests] | None = None,
    findings: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    links: Mapping[str, str] | None = None,
) -> Page:
    """`requests`: of one compared run of each node, for latency curves. `findings`: lint of each node, as (code,
    sentence). `links`: point -> address of its own page, relative to this one."""
    sections = [
        ladder_section(result, findings or {}, links or {}),
        _rate_section(result),
        _latency_section(result, requests or {}),
        _figures_section(result),
        _start_section(result),
        _quality_section(result),
        _points_section(result, links or {}),
        _measured_on(result),
        _again(result),
        glossary(),
    ]
    gates = [_named(gate, edge) for edge in path_to_best(result) for gate in edge.verdict.gates]
    answer = _answer(result)
    return Page(
        kind="experiment",
        title=result.name,
        answer=answer,
        sentence=result.answer or result.best_sentence or "No answer: nothing was measured to its end.",
        subtitle=_subtitle(result),
        question=result.question,
        what_would_change_it=_what_would_change_it(result),
        gates=gates_of(gates),
        numbers=_key_numbers(result),
        cautions=cautions_of(result.cautions),
        sections=tuple(section for section in sections if section is not None),
    )


def _named(gate: GateResult, edge: EdgeResult) -> GateResult:
    step = f"{edge.parent} → {edge.child}"
    return msgspec.structs.replace(gate, subject=f"{gate.subject}, {step}" if gate.subject else step)


def _answer(result: ExperimentResult) -> Answer | None:
    """The worst of the steps to the best node; without gates an experiment answers its question in words only."""
    if any(caution.invalidates for caution in result.cautions):
        return Answer.INVALID
    found = {edge.verdict.answer for edge in path_to_best(result) if edge.verdict.gates}
    order = (Answer.INVALID, Answer.FAIL, Answer.INCONCLUSIVE, Answer.NOT_MEASURED, Answer.PASS)
    return next((answer for answer in order if answer in found), None)


def _subtitle(result: ExperimentResult) -> tuple[str, ...]:
    parts = (
        f"{len(result.nodes)} configurations",
        f"{result.repeats} repeat{'s' if result.repeats != 1 else ''}, {result.order}",
        f"{seconds(result.measured_s)} measured",
        slo_words(result.slo),
        result.created,
        "" if result.status == "complete" else f"{result.status}: not every point was measured",
    )
    return tuple(part for part in parts if part)


def _what_would_change_it(result: ExperimentResult) -> str:
    open_edges = [edge for edge in result.edges if edge.answer == "inconclusive"]
    if not open_edges:
        return ""
    names = ", ".join(f"{edge.parent} → {edge.child}" for edge in open_edges)
    return f"more repeats would narrow {names}, which the intervals leave open."


def _key_numbers(result: ExperimentResult) -> tuple[KeyNumber, ...]:
    best = best_node(result)
    if best is None:
        return ()
    base = result.nodes[0]
    found = [KeyNumber("Best configuration", best.name, "", "", "of those measured")]
    for figure in dict.fromkeys((result.decides, "goodput_rps", "ttft_p95_s", "tpot_p95_s", "prefix_hit")):
        estimate = figure_of(best, figure)
        if estimate is None or estimate.value is None:
            continue
        name, unit = FIGURES.get(figure, (figure.replace("_", " "), estimate.unit))
        before = figure_of(base, figure)
        note = f"{base.name}: {value_of(before, unit)}" if before is not None and before is not estimate else ""
        found.append(
            KeyNumber(
                name[0].upper() + name[1:], *in_parts(value_of(estimate, unit)), interval_of(estimate, unit), note
            )
        )
    return tuple(found[:8])


def _rate_section(result: ExperimentResult) -> Section:
    curves = [_curve(node.name, node.rate) for node in result.nodes if node.rate is not None]
    charts = rate_charts(curves)
    cliffs = [node.name for node in result.nodes if node.rate is not None and node.rate.cliff]
    note = (
        f"A cliff at {', '.join(cliffs)}: a little more load than the highest rate loses most good requests."
        if cliffs
        else ""
    )
    if charts:
        return Section("rates-section", "Rates", charts, note)
    missing = Words("Not measured: the experiment compares at one rate and does not search for the highest.", "missing")
    return Section("rates-section", "Rates", (missing,))


def _curve(name: str, rate: RateResult) -> Curve:
    levels = tuple(
        Level(at.rate_rps, at.attainment, at.goodput_rps, at.num_requests, at.num_points) for at in rate.levels
    )
    return Curve(name, levels, rate.share, rate.highest_pass_rps, rate.lowest_fail_rps)


def _latency_section(result: ExperimentResult, requests: Mapping[str, Requests]) -> Section | None:
    if not requests:
        return None
    order = [node.name for node in result.nodes if node.name in requests]
    charts = []
    for id, title, name in (
        ("ttft", "TTFT", "ttft"),
        ("tpot", "TPOT", "tpot"),
        ("e2e", "End to end", "e2e"),
        ("icl-max", "Longest gap", "icl_max"),
    ):
        series = [
            Series(
                node,
                requests[node].measured(getattr(requests[node].times, name)),
                SERIES[i % len(SERIES)],
                DASHES[i % len(DASHES)],
            )
            for i, node in enumerate(order)
        ]
        limits = [
            (f"limit {exact(limit)}", limit) for terms in result.slo[:1] if (limit := getattr(terms, f"{name}_s", None))
        ]
        charts.append(latency_chart(id, title, title if name != "e2e" else "E2E", series, limits))
    found = tuple(chart for chart in charts if chart is not None)
    return (
        Section(
            "latency",
            "Latency",
            found,
            "One run of each configuration, all at one rate: requests of its window that ended well.",
        )
        if found
        else None
    )


def _figures_section(result: ExperimentResult) -> Section:
    names = [f for f in FIGURES if any(f in node.figures for node in result.nodes)]
    columns = (
        "configuration",
        *(FIGURES[f][0] + (f" ({FIGURES[f][1]})" if FIGURES[f][1] not in ("s", "share") else "") for f in names),
    )
    rows = []
    for node in result.nodes:
        cells: list[Cell | str] = [Cell(node.name, node.failed, "bad" if node.failed else "")]
        for figure in names:
            estimate = node.figures.get(figure, Estimate(reason="not measured"))
            unit = FIGURES[figure][1] if FIGURES[figure][1] in ("s", "share") else ""
            cells.append(
                Cell(
                    value_of(estimate, unit), interval_of(estimate, unit), "" if estimate.value is not None else "muted"
                )
            )
        rows.append(tuple(cells))
    return Section(
        "figures-section", "Figures", (Table(columns, tuple(rows), caption="At the compared rate, over the repeats"),)
    )


def _start_section(result: ExperimentResult) -> Section | None:
    starts = [(node.name, start) for node in result.nodes for start in node.starts]
    chart, table = start_chart(starts)
    return Section("starts", "Starts", (chart, table) if chart is not None else (table,)) if table is not None else None


def _quality_section(result: ExperimentResult) -> Section:
    gates = [_named(gate, edge) for edge in result.edges for gate in edge.verdict.gates]
    stored = {node.name: node.quality for node in result.nodes if node.quality}
    return quality_section(gates, stored)


def _points_section(result: ExperimentResult, links: Mapping[str, str]) -> Section:
    rows = tuple(_point(point, links) for point in result.points)
    columns = (
        "point",
        "status",
        "for",
        "order",
        "offered (req/s)",
        "requests",
        "good",
        "goodput (req/s)",
        "TTFT p95",
        "TPOT p95",
    )
    note = "Every measured point, in the order in which they were measured."
    return Section("points", "Points", (Table(columns, rows, num_words=3),), note)


def _point(point: PointResult, links: Mapping[str, str]) -> tuple[Cell | str, ...]:
    def cell(figure: str, unit: str) -> Cell:
        estimate = point.figures.get(figure, Estimate(reason="not measured"))
        return Cell(
            value_of(estimate, unit), interval_of(estimate, unit), "" if estimate.value is not None else "muted"
        )

    status = Cell(point.status, point.reason, "" if point.status == "ok" else "bad")
    good = share(point.num_good / point.num_requests) if point.num_requests else "–"
    return (
        Cell(point.id, href=links.get(point.id, "")), status, point.purpose, count(point.order), number(point.rate_rps),
        count(point.num_requests), good, cell("goodput_rps", ""), cell("ttft_p95_s", "s"), cell("tpot_p95_s", "s"),
    )  # fmt: skip


def _measured_on(result: ExperimentResult) -> Section:
    blocks: list[Block] = [FactSheet(tuple(fingerprint_facts(result.fingerprint)))] if result.fingerprint else []
    best = best_node(result) or (result.nodes[0] if result.nodes else None)
    for node in result.nodes:
        if node is best and node.config:
            words = {"resolved": "as the server resolved it", "declared": "as it was declared"}
            blocks.append(
                config_table(
                    node.config, f"Configuration of {node.name}, {words.get(node.config_source, 'of unknown origin')}"
                )
            )
    others = [node for node in result.nodes if node is not best and node.config]
    blocks += [Code(toml_of(node.config), f"Configuration of {node.name}", folded=True) for node in others]
    return Section("measured-on", "Measured on", tuple(blocks))


def _again(result: ExperimentResult) -> Section:
    blocks: list[Block] = []
    if result.serve_command:
        blocks.append(Code(result.serve_command, "Serve the best configuration"))
    blocks += [
        Code("paceline tune spec.toml", "Measure again"),
        Code(toml_of(result.spec), "Experiment, resolved", folded=True),
        Code(toml_of(result.workload), "Workload, resolved", folded=True),
    ]
    return Section("again", "Again", tuple(blocks))
