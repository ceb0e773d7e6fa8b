"""What one edge of the graph did: ratios of child to parent, paired by repeat and by request. Numbers in, numbers out.

Two kinds of uncertainty go into a ratio's interval, and the wider end of both is taken:

- within runs: requests of equal repeats are paired by their ids and resampled in blocks, see `stats.paired`;
- between runs: with three repeats or more, Student's interval over the repeats' own ratios. With two, the ratio is only
  called better or worse when neither repeat says the opposite. With one, the run-to-run part is unknown, and the words
  say that. All rates of one repeat are one run here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.contracts.slo import percentile
from paceline.lab.experiment.figures import Samples
from paceline.lab.experiment.results import FIGURES, Ratio
from paceline.lab.metrics.columns import Floats
from paceline.lab.stats import paired
from paceline.lab.stats.strata import stratified_ratio

_QUANTILE = {"_p50_s": 0.50, "_p95_s": 0.95}
RATES = ("goodput_rps", "good_tokens_per_s")  # sums over the window: who is not in it adds nothing
PER_REQUEST = (
    "goodput_rps",
    "attainment",
    "good_tokens_per_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "e2e_p50_s",
    "e2e_p95_s",
)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The same plan asked of both nodes: samples by figure, in order of the plan, see `pair_up`."""

    repeat: int
    parent: Samples
    child: Samples
    rate_rps: float | None = None


def pair_up(
    repeat: int,
    parent: tuple[Sequence[int], Samples],
    child: tuple[Sequence[int], Samples],
    rate_rps: float | None = None,
) -> Pair:
    """Keeps the requests that both runs have in their window. Figures of `RATES` keep those of either, with 0 where one
    has none: turns that a slow server puts off until after the window are missing from its goodput."""
    both, either = sorted(set(parent[0]) & set(child[0])), sorted(set(parent[0]) | set(child[0]))

    def kept(ids: Sequence[int], samples: Samples) -> Samples:
        place = {number: index for index, number in enumerate(ids)}
        shared = np.asarray([place[number] for number in both], dtype=np.int64)
        found = Samples({name: values[shared] for name, values in samples.items()})
        for name in RATES:
            if name in samples:
                found[name] = np.asarray([samples[name][place[n]] if n in place else 0.0 for n in either])
        return found

    return Pair(repeat=repeat, parent=kept(*parent), child=kept(*child), rate_rps=rate_rps)


def ratio_of(figure: str, pairs: Sequence[Pair], margin: float) -> Ratio:
    """Child over parent in one figure, over all repeats."""
    repeats = list(dict.fromkeys(pair.repeat for pair in pairs))
    of_each = [_one(figure, [p for p in pairs if p.repeat == repeat]) for repeat in repeats]
    a, b = _joined(figure, pairs)
    within = _one(figure, pairs)
    parent, child = _value(figure, a), _value(figure, b)
    found = Ratio(figure=figure, parent=parent, child=child, ratio=_estimate(within, of_each))
    answer = answer_of(found.ratio, [r.value for r in of_each], FIGURES[figure][1], margin)
    if within.value == math.inf and within.lo > 1 and not any(r.value < 1 for r in of_each):  # no number, yet an answer
        answer = "better" if FIGURES[figure][1] else "worse"
    return msgspec.structs.replace(found, answer=answer, sentence=sentence(found, answer))


def _joined(figure: str, pairs: Sequence[Pair]) -> tuple[Floats, Floats]:
    if not pairs:
        return np.empty(0), np.empty(0)
    return np.concatenate([p.parent[figure] for p in pairs]), np.concatenate([p.child[figure] for p in pairs])


def ratio_of_runs(figure: str, values: Sequence[tuple[float, float]], margin: float) -> Ratio:
    """From one figure of each run, (parent's, child's) by repeat: for a closed loop, whose rate is the server's and not
    the plan's, so that requests do not pair in it. All values above 0."""
    of_each = [child / parent for parent, child in values]
    found = paired.ratio_of_repeats([math.log(ratio) for ratio in of_each])
    bounds = math.isfinite(found.lo) and math.isfinite(found.hi)
    estimate = Estimate(
        value=found.value,
        lo=found.lo if bounds else None,
        hi=found.hi if bounds else None,
        n=found.n,
        method=found.method,
        unit="x",
        reason="" if bounds else "one repeat: what differs from run to run is not known",
    )
    parent, child = (sum(side) / len(values) for side in zip(*values, strict=True))
    ratio = Ratio(figure=figure, parent=parent, child=child, ratio=estimate)
    answer = answer_of(estimate, of_each, FIGURES[figure][1], margin)
    return msgspec.structs.replace(ratio, answer=answer, sentence=sentence(ratio, answer))


def _one(figure: str, pairs: Sequence[Pair]) -> paired.Ratio:
    """Of all requests of these runs; rates are parts that differ by design."""
    by_rate = [[p for p in pairs if p.rate_rps == rate] for rate in dict.fromkeys(p.rate_rps for p in pairs)]
    parts = [_both(*_joined(figure, here)) for here in by_rate or [[]]]
    quantile = _QUANTILE.get(figure[-6:])
    if quantile is not None:
        a, b = (np.concatenate(side) for side in zip(*parts, strict=True))
        return paired.quantile_ratio(a, b, quantile)
    return paired.mean_ratio(*parts[0]) if len(parts) == 1 else stratified_ratio(parts)


def _both(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    keep = ~(np.isnan(a) | np.isnan(b))
    return a[keep], b[keep]


def _value(figure: str, samples: Floats) -> float | None:
    values = samples[~np.isnan(samples)]
    if not len(values):
        return None
    quantile = _QUANTILE.get(figure[-6:])
    if quantile is None:
        return float(values.mean())
    value = percentile(values.tolist(), quantile)
    return value if math.isfinite(value) else None


def _estimate(within: paired.Ratio, of_each: Sequence[paired.Ratio]) -> Estimate:
    if not math.isfinite(within.value):
        reason = "the parent's figure is zero, unknown or infinite"
        if within.value == math.inf:
            reason = "no number: the child's figure is infinite (too much failed), or the parent's is 0"
        return Estimate(n=within.n, unit="x", method=within.method, reason=reason)
    lo, hi, method = within.lo, within.hi, within.method
    logs = [math.log(r.value) for r in of_each if r.value > 0 and math.isfinite(r.value)]
    if len(logs) >= 3:
        between = paired.ratio_of_repeats(logs)
        lo, hi = min(lo, between.lo), max(hi, between.hi)
        method += f"; and {between.method}, the wider of both"
    return Estimate(
        value=within.value,
        lo=lo if math.isfinite(lo) else None,
        hi=hi if math.isfinite(hi) else None,
        n=within.n,
        method=method,
        unit="x",
        reason="" if len(of_each) > 1 else "one repeat: what differs from run to run is not in the interval",
    )


def answer_of(ratio: Estimate, of_each: Sequence[float], more_is_better: bool, margin: float) -> str:
    """better or worse: the whole interval lies on one side of 1, and no repeat lies on the other. same: it lies within
    the margin. Else inconclusive. An end that is not known is open."""
    if ratio.value is None:
        return "not measured"
    if ratio.lo is None and ratio.hi is None:
        return "inconclusive"
    lo = 0.0 if ratio.lo is None else ratio.lo
    hi = math.inf if ratio.hi is None else ratio.hi
    if 1 - margin <= lo and hi <= 1 + margin:
        return "same"
    known = [value for value in of_each if not math.isnan(value)]
    if lo > 1 and all(value >= 1 for value in known):
        return "better" if more_is_better else "worse"
    if hi < 1 and all(value <= 1 for value in known):
        return "worse" if more_is_better else "better"
    return "inconclusive"


def sentence(ratio: Ratio, answer: str) -> str:
    estimate = ratio.ratio
    if estimate.value is None:
        return f"{ratio.figure}: {estimate.reason}"
    between = ""
    if estimate.lo is not None or estimate.hi is not None:
        low, high = ("open" if end is None else f"{end:.3f}" for end in (estimate.lo, estimate.hi))
        between = f" (95 % interval {low} to {high})"
    return f"{ratio.figure} {answer}: {estimate.value:.3f} times the parent's{between}"
