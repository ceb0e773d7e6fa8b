"""From points to answers: figures of nodes, ratios and verdicts of edges, the best node and a sentence. Reads runs from
disk, measures nothing; run again on the same folder it gives the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.contracts.artefact import Answer, Estimate, Verdict
from paceline.lab.artefact import StoredRun, read_run
from paceline.lab.experiment.edges import PER_REQUEST, Pair, answer_of, pair_up, ratio_of, ratio_of_runs, sentence
from paceline.lab.experiment.figures import figures_of, over_repeats, samples_of
from paceline.lab.experiment.nodes import edge_changes
from paceline.lab.experiment.rate_search import asked_share, replay
from paceline.lab.experiment.results import (
    FIGURES,
    EdgeResult,
    ExperimentResult,
    NodeResult,
    PointResult,
    RateResult,
    Ratio,
)
from paceline.lab.experiment.spec import Loaded
from paceline.lab.experiment.verdicts import gate_edge

MAX_RATE = "max_rate_rps"
RATES = ("goodput_rps", "good_tokens_per_s")  # per second of the window


def conclude(folder: Path, result: ExperimentResult, loaded: Loaded, status: str) -> ExperimentResult:
    """The result with everything that follows from its points. `status`: complete or partial."""
    nodes = tuple(_node(node, result, loaded) for node in result.nodes)
    result = msgspec.structs.replace(result, nodes=nodes, status=status)
    edges = tuple(_edge(folder, result, loaded, node) for node in nodes if node.parent is not None)
    result = msgspec.structs.replace(result, edges=edges)
    best, why = best_node(result)
    return msgspec.structs.replace(
        result,
        best=best,
        best_sentence=why,
        serve_command=result.node(best).serve if best else "",
        answer=why if status == "complete" else f"Not finished: {why[0].lower()}{why[1:]}",
    )


def _node(node: NodeResult, result: ExperimentResult, loaded: Loaded) -> NodeResult:
    points = [p for p in result.points_of(node.name) if p.status == "ok"]
    figures = over_repeats([p for p in points if p.purpose == "compare"])
    search = loaded.spec.search
    rate: RateResult | None = None
    if search is not None:
        share = search.share or asked_share(result.slo)
        rate = replay(search, share, points, loaded.spec.experiment.seed).result()
        if rate.highest_pass_rps is not None:
            at_rate = [p for p in points if p.rate_rps == rate.highest_pass_rps]
            figures = {**over_repeats(at_rate), MAX_RATE: _max_rate(rate)}
    return msgspec.structs.replace(node, figures=figures, rate=rate)


def _max_rate(rate: RateResult) -> Estimate:
    """Without a fail above there is no crossing: then the highest rate that held, with no upper end."""
    if rate.max_rate_rps.value is not None:
        return rate.max_rate_rps
    value = rate.highest_pass_rps
    return Estimate(value=value, lo=value, unit="req/s", method="highest rate tried", reason="no rate failed")


def _edge(folder: Path, result: ExperimentResult, loaded: Loaded, node: NodeResult) -> EdgeResult:
    parent = result.node(node.parent or "")
    edge = EdgeResult(parent=parent.name, child=node.name, group=node.group or "")
    failed = node.failed or parent.failed
    if failed:
        return msgspec.structs.replace(
            edge,
            answer="invalid",
            sentence=f"{node.name} was not measured: {failed}",
            verdict=Verdict(answer=Answer.INVALID, sentence=failed),
        )
    edge = msgspec.structs.replace(edge, changes=tuple(edge_changes(parent, node)))
    couples = paired_points(result, parent.name, node.name)
    runs = [(a, read_run(folder / a.path), read_run(folder / b.path)) for a, b in couples]
    ratios = _ratios(runs, result)
    if result.decides == MAX_RATE:
        ratios = [max_rate_ratio(parent, node, result.margin), *ratios]
    if not ratios:
        ended = "no pair of points of both nodes is whole"
        return msgspec.structs.replace(edge, answer="invalid", sentence=f"{node.name}: {ended}")
    deciding = next((r for r in ratios if r.figure == result.decides), ratios[0])
    edge = msgspec.structs.replace(
        edge,
        ratios=(deciding, *(r for r in ratios if r is not deciding)),
        answer="inconclusive" if deciding.answer == "not measured" else deciding.answer,
        sentence=f"{parent.name} -> {node.name} ({node.group}): {deciding.sentence}",
    )
    judged = at_target_rate(runs, asked_share(result.slo))
    return gate_edge(folder, edge, loaded, parent, node, [a for _, a, _ in judged], [b for _, _, b in judged])


def paired_points(result: ExperimentResult, parent: str, child: str) -> list[tuple[PointResult, PointResult]]:
    """Points of equal purpose, repeat, rate and seed, both whole."""
    theirs = {(p.purpose, p.repeat, p.rate_rps, p.seed): p for p in result.points_of(child) if p.status == "ok"}
    found = []
    for point in result.points_of(parent):
        key = (point.purpose, point.repeat, point.rate_rps, point.seed)
        if point.status == "ok" and key in theirs:
            found.append((point, theirs[key]))
    return found


Couple = tuple[PointResult, StoredRun, StoredRun]  # the parent's point, both runs


def at_target_rate(runs: Sequence[Couple], share: float) -> list[Couple]:
    """What gates judge: where there are several rates, the highest that the parent holds, else the lowest."""
    good: dict[float | None, list[int]] = {}
    for point, _, _ in runs:
        counts = good.setdefault(point.rate_rps, [0, 0])
        counts[0] += point.num_good
        counts[1] += point.num_requests
    if len(good) < 2:
        return list(runs)
    held = [rate for rate, (num, total) in good.items() if num >= share * total]
    target = max(held, key=_rate) if held else min(good, key=_rate)
    return [couple for couple in runs if couple[0].rate_rps == target]


def _rate(rate: float | None) -> float:
    return rate or 0.0


def _ratios(runs: Sequence[Couple], result: ExperimentResult) -> list[Ratio]:
    """Over all rates together for sums and shares; then at each rate, where there are several."""
    pairs: list[tuple[float | None, Pair]] = [
        (point.rate_rps, pair_up(point.repeat, samples_of(a.info, a.records), samples_of(b.info, b.records)))
        for point, a, b in runs
    ]
    if not pairs:
        return []
    rates = list(dict.fromkeys(rate for rate, _ in pairs))
    if any(a.info.closed_loop for _, a, _ in runs):
        return _closed_loop_ratios(runs, [pair for _, pair in pairs], result.margin)
    several = len(rates) > 1
    together = PER_REQUEST[:3] if several else PER_REQUEST
    found = [ratio_of(figure, [pair for _, pair in pairs], result.margin) for figure in together]
    if several:
        for rate in rates:
            here = [pair for at, pair in pairs if at == rate]
            found += [
                msgspec.structs.replace(ratio_of(figure, here, result.margin), rate_rps=rate) for figure in PER_REQUEST
            ]
    return found


def _closed_loop_ratios(runs: Sequence[Couple], pairs: Sequence[Pair], margin: float) -> list[Ratio]:
    """Shares and latencies pair by request; rates are one number a run."""
    found = []
    for figure in PER_REQUEST:
        values = [(_figure(a, figure), _figure(b, figure)) for _, a, b in runs]
        if figure in RATES and all(x > 0 and y > 0 for x, y in values):
            found.append(ratio_of_runs(figure, values, margin))
        else:
            found.append(ratio_of(figure, pairs, margin))
    return found


def _figure(run: StoredRun, figure: str) -> float:
    estimate = figures_of(run.info, run.metrics).get(figure)
    return 0.0 if estimate is None or estimate.value is None else estimate.value


def max_rate_ratio(parent: NodeResult, child: NodeResult, margin: float) -> Ratio:
    """Of two searches that know nothing of each other: the logs' half widths add in quadrature."""
    a, b = parent.figures.get(MAX_RATE), child.figures.get(MAX_RATE)
    if a is None or b is None or not a.value or not b.value:
        silent = parent.name if a is None or not a.value else child.name
        reason = f"no rate was found that {silent} carries"
        return Ratio(
            figure=MAX_RATE,
            parent=a.value if a else None,
            child=b.value if b else None,
            ratio=Estimate(unit="x", reason=reason),
            answer="not measured",
            sentence=f"{MAX_RATE}: {reason}",
        )
    value = b.value / a.value
    down = _quadrature(_gap(b.lo, b.value), _gap(a.value, a.hi))
    up = _quadrature(_gap(b.value, b.hi), _gap(a.lo, a.value))
    estimate = Estimate(
        value=value,
        lo=None if down is None else value * math.exp(-down),
        hi=None if up is None else value * math.exp(up),
        n=a.n + b.n,
        unit="x",
        method="two searches, half widths of the logs in quadrature",
        reason="" if down is not None and up is not None else "one search found no rate that fails",
    )
    ratio = Ratio(figure=MAX_RATE, parent=a.value, child=b.value, ratio=estimate)
    answer = answer_of(estimate, [value], FIGURES[MAX_RATE][1], margin)
    return msgspec.structs.replace(ratio, answer=answer, sentence=sentence(ratio, answer))


def _gap(low: float | None, high: float | None) -> float | None:
    return None if not low or not high else abs(math.log(high / low))


def _quadrature(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else math.hypot(a, b)


def best_node(result: ExperimentResult) -> tuple[str | None, str]:
    """The node with the best deciding figure among the base and those whose last step was shown to be better and was
    not refused by a gate. Within the margin of the best, the one nearer the base wins: a change that buys nothing, or
    is not shown to, is not made."""
    figure = result.decides
    unit, more = FIGURES[figure]
    edges = {edge.child: edge for edge in result.edges}
    values = {
        node.name: value
        for node in result.nodes
        if (estimate := node.figures.get(figure)) is not None and (value := estimate.value) is not None
    }
    shown = {name: value for name, value in values.items() if name not in edges or _is_shown(edges[name])}
    if not shown:
        return None, f"No node has a {figure} that was measured to the end."
    pick = max if more else min
    top = pick(shown.values())
    if more and top <= 0:
        return None, f"No node is best: {figure} is 0 everywhere. Lower the rate, or ask less of the SLO."
    name = next(n for n, value in shown.items() if abs(value - top) <= abs(top) * result.margin)
    words = f"Best is {name} with {figure} {shown[name]:.4g} {unit}".rstrip()
    base = result.nodes[0].name
    if name != base and shown.get(base):
        words += f", {shown[name] / shown[base]:.2f} times the base's"
    if name == base and edges:
        words += ": no change was shown to be worth more than the margin"
    higher = pick(values, key=lambda n: values[n])
    unsure = edges.get(higher)
    beyond = abs(values[higher] - shown[name]) > abs(top) * result.margin
    if unsure is not None and higher not in shown and beyond:
        why = f"fails a gate ({unsure.verdict.sentence})" if unsure.verdict.answer is Answer.FAIL else unsure.answer
        words += f". {higher} measured {values[higher]:.4g}, but its step is {why}"
    return name, f"{words}."


def _is_shown(edge: EdgeResult) -> bool:
    return edge.answer == "better" and edge.verdict.answer is not Answer.FAIL
