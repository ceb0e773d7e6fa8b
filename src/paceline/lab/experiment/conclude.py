"""From points to answers: figures of nodes, ratios and verdicts of edges, the best node and a sentence. Reads runs from
disk, measures nothing; run again on the same folder it gives the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from paceline.contracts.artefact import Answer, Caution, Estimate, Verdict
from paceline.lab.artefact import StoredRun, read_run
from paceline.lab.experiment.edges import (
    PER_REQUEST,
    RATES,
    Pair,
    answer_of,
    pair_up,
    ratio_of,
    ratio_of_runs,
    sentence,
)
from paceline.lab.experiment.figures import figures_of, over_repeats, samples_of
from paceline.lab.experiment.nodes import edge_changes
from paceline.lab.experiment.quality import summary
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
OWN_CAUTIONS = ("invalid_points", "thin_search")


def conclude(folder: Path, result: ExperimentResult, loaded: Loaded, status: str) -> ExperimentResult:
    """The result with everything that follows from its points. `status`: complete or partial."""
    nodes = tuple(_node(folder, node, result, loaded) for node in result.nodes)
    result = msgspec.structs.replace(result, nodes=nodes, status=status)
    edges = tuple(_edge(folder, result, loaded, node) for node in nodes if node.parent is not None)
    own = tuple(_cautions(result))
    others = tuple(c for c in result.cautions if c.code not in OWN_CAUTIONS)
    result = msgspec.structs.replace(result, edges=edges, cautions=(*others, *own))
    best, why = best_node(result)
    return msgspec.structs.replace(
        result,
        best=best,
        best_sentence=why,
        serve_command=result.node(best).serve if best else "",
        answer=why if status == "complete" else f"Not finished: {why[0].lower()}{why[1:]}",
    )


def _cautions(result: ExperimentResult) -> Iterator[Caution]:
    """What was not measured, and searches that so few requests decided that one of them did."""
    unsound = [p for p in result.points if p.status == "invalid"]
    if unsound:
        yield Caution(
            code="invalid_points",
            sentence=f"{len(unsound)} of {len(result.points)} points say nothing about their server and are not "
            f"compared; the first is {unsound[0].id}: {unsound[0].reason}",
        )
    thin = {}
    for node in result.nodes:
        if node.rate is not None:
            ends = (node.rate.highest_pass_rps, node.rate.lowest_fail_rps)
            counts = [level.num_requests for level in node.rate.levels if level.rate_rps in ends]
            if counts and min(counts) * (1 - node.rate.share) < 1 - 1e-9:
                thin[node.name] = min(counts)
    if thin:
        told = ", ".join(f"{name} {count}" for name, count in thin.items())
        yield Caution(
            code="thin_search",
            sentence=f"So few requests were measured at an end of the search that one of them decides ({told}): "
            "measure for longer.",
        )


def _node(folder: Path, node: NodeResult, result: ExperimentResult, loaded: Loaded) -> NodeResult:
    points = [p for p in result.points_of(node.name) if p.status == "ok"]
    figures = over_repeats([p for p in points if p.purpose == "compare"])
    search = loaded.spec.search
    rate: RateResult | None = None
    if search is not None:
        share = asked_share(result.slo, search)
        rate = replay(search, share, points, loaded.spec.experiment.seed).result()
        if rate.highest_pass_rps is not None:
            at_rate = [p for p in points if p.rate_rps == rate.highest_pass_rps]
            figures = {**over_repeats(at_rate), MAX_RATE: _max_rate(rate)}
    return msgspec.structs.replace(node, figures=figures, rate=rate, quality=summary(folder, loaded, node.name))


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
    judged = at_target_rate(runs, asked_share(result.slo, loaded.spec.search))
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
    pairs = [
        pair_up(point.repeat, samples_of(a.info, a.records), samples_of(b.info, b.records), point.rate_rps)
        for point, a, b in runs
    ]
    if not pairs:
        return []
    rates = list(dict.fromkeys(pair.rate_rps for pair in pairs))
    if any(a.info.closed_loop for _, a, _ in runs):
        return _closed_loop_ratios(runs, pairs, result.margin)
    several = len(rates) > 1
    together = PER_REQUEST[:3] if several else PER_REQUEST
    found = [ratio_of(figure, pairs, result.margin) for figure in together]
    if several:
        for rate in rates:
            here = [pair for pair in pairs if pair.rate_rps == rate]
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
        estimate = _bounded_by_fail(parent, child)
    else:
        estimate = _of_two_searches(a, b, a.value, b.value)
    ratio = Ratio(figure=MAX_RATE, parent=a.value if a else None, child=b.value if b else None, ratio=estimate)
    answer = answer_of(estimate, [], FIGURES[MAX_RATE][1], margin)
    return msgspec.structs.replace(ratio, answer=answer, sentence=sentence(ratio, answer))


def _of_two_searches(a: Estimate, b: Estimate, held: float, carried: float) -> Estimate:
    value = carried / held
    down = _quadrature(_gap(b.lo, carried), _gap(held, a.hi))
    up = _quadrature(_gap(carried, b.hi), _gap(a.lo, held))
    return Estimate(
        value=value,
        lo=None if down is None else value * math.exp(-down),
        hi=None if up is None else value * math.exp(up),
        n=a.n + b.n,
        unit="x",
        method="two searches, half widths of the logs in quadrature",
        reason="" if down is not None and up is not None else "one search found no rate that fails",
    )


def _bounded_by_fail(parent: NodeResult, child: NodeResult) -> Estimate:
    """Where one of them held no rate at all: the lowest rate it failed at bounds the ratio from one side."""
    a, b = parent.figures.get(MAX_RATE), child.figures.get(MAX_RATE)
    silent = child if a is not None and a.value else parent
    failed = silent.rate.lowest_fail_rps if silent.rate is not None else None
    reason = f"no rate was found that {silent.name} carries"
    if failed and silent is parent and b is not None and b.value and b.lo:
        reason += f"; it failed at {failed:.4g} requests/s already, so this is the least the ratio can be"
        return Estimate(value=b.value / failed, lo=b.lo / failed, n=b.n, unit="x", method=b.method, reason=reason)
    if failed and silent is child and a is not None and a.value and a.lo:
        reason += f"; it failed at {failed:.4g} requests/s already, so this is the most the ratio can be"
        return Estimate(value=failed / a.value, hi=failed / a.lo, n=a.n, unit="x", method=a.method, reason=reason)
    return Estimate(unit="x", reason=reason)


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
