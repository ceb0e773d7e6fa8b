"""An A/B verdict between two stored runs: better, worse, no difference shown, or not comparable.

Each figure is a ratio B / A with a 95 % interval. Where both runs were asked the same plan, requests pair by id and are
drawn together; else each arm is drawn by itself, which needs far more requests. Failed requests are infinitely late in
the percentiles. The figures are one family: a difference counts when its p, adjusted by Holm, is below 5 %, so that two
equal runs are told apart in at most one comparison of twenty, all figures together.

One run of each arm knows nothing of what varies from run to run (temperature, neighbours, placement): a difference that
shall be believed is repeated, see `paceline tune`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from paceline.contracts.artefact import Caution, Estimate
from paceline.lab.artefact.arms import Arm, align
from paceline.lab.artefact.comparison import BETTER, INCOMPARABLE, SAME, WORSE, Comparison, Line, figure_words
from paceline.lab.artefact.differences import differences, workload_of
from paceline.lab.artefact.plans import same_plan
from paceline.lab.artefact.scores import quality_lines
from paceline.lab.artefact.store import StoredRun
from paceline.lab.metrics.columns import Floats
from paceline.lab.stats.paired import Ratio, hodges_lehmann, holm, mean_ratio, non_inferior, quantile_ratio

_ALPHA = 0.05
_LATENCIES = (("ttft", 0.50), ("ttft", 0.95), ("tpot", 0.50), ("tpot", 0.95), ("e2e", 0.50), ("e2e", 0.95))


def compare_runs(
    a: StoredRun,
    b: StoredRun,
    *,
    margin: float = 0.03,
    latency_margin: float = 0.05,
    quality_margin: float = 0.02,
    seed: int = 0,
) -> Comparison:
    """B against A. The margins are those of "not worse": a share of goodput and throughput, a share of a latency, and
    points of right answers (0.02: two)."""
    obstacles = list(_obstacles(a, b))
    paired = same_plan(a, b)
    reasons = [] if paired else ["their plans differ, so requests do not pair: small differences will not show"]
    lines: list[Line] = []
    num_pairs = 0
    if not obstacles:
        x, y, num_pairs = align(a, b, paired=paired)
        lines = list(_lines(a, b, x, y, paired, margin, latency_margin, seed))
        lines = _judged([*lines, *quality_lines(a.path, b.path, margin=quality_margin)])
    answer, sentence = (INCOMPARABLE, f"Not comparable: {'; '.join(obstacles)}.") if obstacles else _verdict(lines)
    return Comparison(
        a=a.info.name,
        b=b.info.name,
        answer=answer,
        sentence=sentence,
        paired=paired and not obstacles,
        num_pairs=num_pairs,
        reasons=(*obstacles, *reasons),
        lines=tuple(lines),
        differences=differences(a.info, b.info),
        cautions=tuple(_cautions(a, b)),
    )


def _obstacles(a: StoredRun, b: StoredRun) -> Iterator[str]:
    for name, run in (("A", a), ("B", b)):
        broken = [c for c in run.metrics.cautions if c.invalidates]
        if broken:
            yield f"{name} says nothing about its server ({broken[0].sentence.rstrip('.')})"
    if a.info.closed_loop != b.info.closed_loop:
        yield "one is an open loop, the other a closed one"
    if workload_of(a.info) != workload_of(b.info):
        yield "their workloads differ"
    if {c.name: c for c in a.info.slo} != {c.name: c for c in b.info.slo}:
        yield "their SLOs differ"


def _cautions(a: StoredRun, b: StoredRun) -> Iterator[Caution]:
    yield Caution(
        code="one_run_each",
        sentence="One run of each: what varies from run to run is in no interval here; repeat before you believe it.",
    )
    for name, run in (("A", a), ("B", b)):
        for caution in run.metrics.cautions:
            yield msgspec.structs.replace(caution, sentence=f"{name}: {caution.sentence}")


def _lines(
    a: StoredRun, b: StoredRun, x: Arm, y: Arm, paired: bool, margin: float, latency_margin: float, seed: int
) -> Iterator[Line]:
    before, after = a.metrics.whole, b.metrics.whole
    # open loop: both were asked the same number in the same time, so the share that is good is the rate. Not so with
    # later turns, which come when the server has answered
    open_pairs = paired and not a.info.closed_loop and not any(r.turn for run in (a, b) for r in run.records)
    goodput = mean_ratio(x.good, y.good) if open_pairs else mean_ratio(x.good_rate, y.good_rate, paired=False)
    yield _line("goodput", goodput, before.goodput_rps, after.goodput_rps, True, margin)
    share = mean_ratio(x.counted, y.counted, paired=paired)
    yield _line("attainment", share, before.attainment, after.attainment, True, margin)
    tokens = mean_ratio(x.token_rate, y.token_rate, paired=open_pairs and len(x.token_rate) == len(y.token_rate))
    if a.metrics.output_tokens_per_s.value is not None and b.metrics.output_tokens_per_s.value is not None:
        throughput = a.metrics.output_tokens_per_s, b.metrics.output_tokens_per_s
        yield _line("tokens_per_s", tokens, *throughput, True, margin)
    for term, q in _LATENCIES:
        s, t = x.times[term], y.times[term]
        name = f"p{100 * q:.0f}"
        refused = getattr(before.slo_latency[term], name), getattr(after.slo_latency[term], name)
        if not len(s) or not len(t) or any("needs" in e.reason for e in refused):
            continue
        ratio = quantile_ratio(s, t, q, paired=paired, seed=seed)
        line = _line(f"{term}_{name}", ratio, *refused, False, latency_margin)
        if paired and q == 0.5:
            line = msgspec.structs.replace(line, typical=_typical(s, t))
        yield line


def _typical(a: Floats, b: Floats) -> Estimate:
    """Hodges-Lehmann ratio of the two times of a request, over those that have both."""
    use = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    found = hodges_lehmann(np.log(b[use]) - np.log(a[use]))
    if not use.any():
        return Estimate(unit="x", reason="no request has both times")
    bounds = not math.isnan(found.lo)
    return Estimate(
        value=math.exp(found.value),
        lo=math.exp(found.lo) if bounds else None,
        hi=math.exp(found.hi) if bounds else None,
        n=int(use.sum()),
        method="Hodges-Lehmann, signed ranks 95 %, requests taken as independent",
        unit="x",
    )


def _line(figure: str, ratio: Ratio, a: Estimate, b: Estimate, higher_is_better: bool, margin: float) -> Line:
    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    value = known(ratio.value)
    return Line(
        figure=figure,
        higher_is_better=higher_is_better,
        a=a,
        b=b,
        ratio=Estimate(
            value=value,
            lo=known(ratio.lo),
            hi=known(ratio.hi),
            n=ratio.n,
            method=ratio.method,
            unit="x",
            reason="" if value is not None else "one side is zero, infinite or not there",
        ),
        p=known(ratio.p),
        not_worse=non_inferior(ratio, margin, higher_is_better=higher_is_better).answer,
        margin=margin,
    )


def _judged(lines: list[Line]) -> list[Line]:
    """With Holm's p and the words."""
    adjusted = holm([math.nan if line.p is None else line.p for line in lines])
    return [_told(line, None if math.isnan(p) else p) for line, p in zip(lines, adjusted, strict=True)]


def _told(line: Line, p: float | None) -> Line:
    rises = _rises(line)
    if rises is None or p is None:
        answer = INCOMPARABLE if line.ratio.value is None else SAME
    elif p >= _ALPHA:
        answer = SAME
    else:
        answer = BETTER if rises == line.higher_is_better else WORSE
    return msgspec.structs.replace(line, p_holm=p, answer=answer, sentence=_sentence(line, answer, p))


def _rises(line: Line) -> bool | None:
    """Is B's figure the larger? None where neither is, or that is not known."""
    if line.ratio.value is not None:
        middle = 0.0 if line.ratio.unit == "share" else 1.0
        return None if line.ratio.value == middle else line.ratio.value > middle
    if line.a.value is not None and line.b.value is not None and line.a.value != line.b.value:
        return line.b.value > line.a.value
    if not line.higher_is_better and (line.a.value is None) != (line.b.value is None):
        return line.b.value is None  # infinite: too much failed
    return None


def _sentence(line: Line, answer: str, p: float | None) -> str:
    e, name = line.ratio, figure_words(line.figure)
    name = name[:1].upper() + name[1:]
    if e.value is None:
        return f"{name}: {answer} ({e.reason})."
    between = f", 95 % interval {e.lo:.3g} to {e.hi:.3g}" if e.lo is not None and e.hi is not None else ", no interval"
    chance = "" if p is None else f", p {p:.2g} with all figures counted"
    if e.unit == "share":
        bounds = f"{100 * (e.lo or 0):+.1f} to {100 * (e.hi or 0):+.1f}"
        return f"{name}: {answer}; {100 * e.value:+.1f} points of right answers, 95 % interval {bounds}{chance}."
    return f"{name}: {answer}; {e.value:.3g} times A{between}{chance}."


def _verdict(lines: Sequence[Line]) -> tuple[str, str]:
    """Goodput decides where it differs; else all figures that differ must agree."""
    head = lines[0]
    better = [figure_words(line.figure) for line in lines if line.answer == BETTER]
    worse = [figure_words(line.figure) for line in lines if line.answer == WORSE]
    if head.answer in (BETTER, WORSE):
        against = worse if head.answer == BETTER else better
        but = f" But {', '.join(against)} went the other way." if against else ""
        return head.answer, f"B is {head.answer}. {head.sentence}{but}"
    if better and worse:
        return (
            SAME,
            f"No difference in goodput shown; a trade: better in {', '.join(better)}, worse in {', '.join(worse)}.",
        )
    if better or worse:
        answer = BETTER if better else WORSE
        return answer, f"B is {answer} in {', '.join(better or worse)}. {head.sentence}"
    return SAME, f"No difference shown in {len(lines)} figures. {head.sentence}"
