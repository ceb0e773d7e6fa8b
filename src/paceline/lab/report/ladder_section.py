"""The ladder of an experiment: its chart, and what each edge of the graph changed and did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.contracts.artefact import Estimate
from paceline.lab.report.charts.ladder import Step, ladder_chart
from paceline.lab.report.page import Block, Cell, Edge, Edges, Section
from paceline.lab.report.words import interval_of, number, plain, ratio

if TYPE_CHECKING:
    from paceline.lab.experiment.results import EdgeResult, ExperimentResult, NodeResult, PointResult

FIGURES = {
    "goodput_rps": ("goodput", "req/s"), "attainment": ("attainment", "share"),
    "max_rate_rps": ("highest rate within the SLO", "req/s"),
    "good_tokens_per_s": ("good tokens", "tokens/s"), "output_tokens_per_s": ("output", "tokens/s"),
    "ttft_p50_s": ("TTFT p50", "s"), "ttft_p95_s": ("TTFT p95", "s"), "tpot_p50_s": ("TPOT p50", "s"),
    "tpot_p95_s": ("TPOT p95", "s"), "e2e_p50_s": ("E2E p50", "s"), "e2e_p95_s": ("E2E p95", "s"),
    "prefix_hit": ("prefix hits", "share"), "joules_per_good_token": ("energy per good token", "J"),
}  # fmt: skip
_TONES = {"better": "good", "worse": "bad"}


def ladder_section(
    result: ExperimentResult, findings: Mapping[str, Sequence[tuple[str, str]]], links: Mapping[str, str]
) -> Section:
    what, unit = FIGURES.get(result.decides, (result.decides, ""))
    steps = []
    for node in result.nodes:
        edge = edge_of(result, node.name)
        gain = next((r.ratio for r in edge.ratios if r.figure == result.decides), None) if edge else None
        estimate = figure_of(node, result.decides) or Estimate(reason=node.failed or "not measured")
        steps.append(Step(node.name, estimate, gain, node.parent or "", node.name == result.best))
    lead = (
        "Lines are 95 % intervals. × is the ratio to the configuration that a step starts from. The best one is darker."
    )
    chart = ladder_chart(steps, what, unit, lead)
    edges = Edges(tuple(_edge(result, node, findings.get(node.name, ()), links) for node in result.nodes))
    blocks: list[Block] = [chart] if chart is not None else []
    return Section("ladder-section", "Ladder", (*blocks, edges), result.best_sentence if result.answer else "")


def _edge(
    result: ExperimentResult, node: NodeResult, findings: Sequence[tuple[str, str]], links: Mapping[str, str]
) -> Edge:
    edge = edge_of(result, node.name)
    pages = tuple((_words_of(point), links[point.id]) for point in result.points_of(node.name) if point.id in links)
    if edge is None:
        options = tuple((name, "", plain(value)) for name, value in node.options.items())
        return Edge(node.name, "", options, (), None, node.failed or "Where the ladder starts.", tuple(findings), pages)
    changes = tuple(
        (c.name, plain(c.before), plain(c.after) + ("" if c.asked else " (follows from it)")) for c in edge.changes
    )
    effects = []
    for r in edge.ratios:
        name, _ = FIGURES.get(r.figure, (r.figure, ""))
        tone: Any = _TONES.get(r.answer, "")
        text = f"{ratio(r.ratio.value)}" if r.ratio.value is not None else r.answer
        effects.append((name, Cell(text, interval_of(r.ratio, "ratio"), tone)))
    answer = edge.verdict.answer if edge.verdict.gates else None
    title = f"{edge.parent} → {node.name}"
    return Edge(
        title, edge.group, changes, tuple(effects), answer, node.failed or edge.sentence, tuple(findings), pages
    )


def _words_of(point: PointResult) -> str:
    if point.purpose == "search":
        return f"the run at {number(point.rate_rps)} requests/s"
    return f"the run of repeat {point.repeat}"


def figure_of(node: NodeResult, figure: str) -> Estimate | None:
    if figure == "max_rate_rps":
        return node.rate.max_rate_rps if node.rate is not None else None
    return node.figures.get(figure)


def best_node(result: ExperimentResult) -> NodeResult | None:
    return next((node for node in result.nodes if node.name == result.best), None)


def edge_of(result: ExperimentResult, child: str) -> EdgeResult | None:
    return next((edge for edge in result.edges if edge.child == child), None)


def path_to_best(result: ExperimentResult) -> list[EdgeResult]:
    """Edges from the base to the best node, in that order."""
    found: list[EdgeResult] = []
    node = result.best
    while node is not None and (edge := edge_of(result, node)) is not None and edge not in found:
        found.insert(0, edge)
        node = edge.parent
    return found
