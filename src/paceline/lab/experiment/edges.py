"""What one edge of the graph did: ratios of child to parent, paired by repeat and by request. Numbers in, numbers out.

Two kinds of uncertainty go into a ratio's interval, and the wider end of both is taken:

- within runs: requests of equal repeats are paired by their ids and resampled in blocks, see `stats.paired`;
- between runs: with three repeats or more, Student's interval over the repeats' own ratios. With two, the ratio is only
  called better or worse when both repeats say so. With one, the run-to-run part is unknown, and the words say that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.lab.experiment.figures import Samples
from paceline.lab.experiment.results import FIGURES, Ratio
from paceline.lab.metrics.columns import Floats
from paceline.lab.stats import paired

_QUANTILE = {"_p50_s": 0.50, "_p95_s": 0.95}
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
    """The same plan asked of both nodes: samples of the requests both have, in order of the plan."""

    repeat: int
    parent: Samples
    child: Samples


def pair_up(repeat: int, parent: tuple[Sequence[int], Samples], child: tuple[Sequence[int], Samples]) -> Pair:
    """Keeps the requests that both runs have."""
    both = set(parent[0]) & set(child[0])

    def kept(ids: Sequence[int], samples: Samples) -> Samples:
        order = sorted((number, place) for place, number in enumerate(ids) if number in both)
        places = np.asarray([place for _, place in order], dtype=np.int64)
        return Samples({name: values[places] for name, values in samples.items()})

    return Pair(repeat=repeat, parent=kept(*parent), child=kept(*child))


def ratio_of(figure: str, pairs: Sequence[Pair], margin: float) -> Ratio:
    """Child over parent in one figure, over all repeats."""
    of_each = [_one(figure, pair.parent[figure], pair.child[figure]) for pair in pairs]
    a = np.concatenate([pair.parent[figure] for pair in pairs]) if pairs else np.empty(0)
    b = np.concatenate([pair.child[figure] for pair in pairs]) if pairs else np.empty(0)
    within = _one(figure, a, b)
    parent, child = _value(figure, a), _value(figure, b)
    found = Ratio(figure=figure, parent=parent, child=child, ratio=_estimate(within, of_each))
    answer = answer_of(found.ratio, [r.value for r in of_each], FIGURES[figure][1], margin)
    return msgspec.structs.replace(found, answer=answer, sentence=sentence(found, answer))


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


def _one(figure: str, a: Floats, b: Floats) -> paired.Ratio:
    keep = ~(np.isnan(a) | np.isnan(b))
    quantile = _QUANTILE.get(figure[-6:])
    if quantile is None:
        return paired.mean_ratio(a[keep], b[keep])
    return paired.quantile_ratio(a[keep], b[keep], quantile)


def _value(figure: str, samples: Floats) -> float | None:
    values = samples[~np.isnan(samples)]
    if not len(values):
        return None
    quantile = _QUANTILE.get(figure[-6:])
    if quantile is None:
        return float(values.mean())
    value = float(np.sort(values)[max(0, math.ceil(quantile * len(values) - 1e-9) - 1)])
    return value if math.isfinite(value) else None


def _estimate(within: paired.Ratio, of_each: Sequence[paired.Ratio]) -> Estimate:
    if not math.isfinite(within.value):
        return Estimate(n=within.n, unit="x", reason="the parent's figure is zero, unknown or infinite")
    lo, hi, method = within.lo, within.hi, within.method
    logs = [math.log(r.value) for r in of_each if r.value > 0 and math.isfinite(r.value)]
    if len(logs) >= 3:
        between = paired.ratio_of_repeats(logs)
        lo, hi = min(lo, between.lo), max(hi, between.hi)
        method += f"; and {between.method}, the wider of both"
    bounds = math.isfinite(lo) and math.isfinite(hi)
    return Estimate(
        value=within.value,
        lo=lo if bounds else None,
        hi=hi if bounds else None,
        n=within.n,
        method=method,
        unit="x",
        reason="" if len(of_each) > 1 else "one repeat: what differs from run to run is not in the interval",
    )


def answer_of(ratio: Estimate, of_each: Sequence[float], more_is_better: bool, margin: float) -> str:
    """better or worse: the whole interval lies on one side of 1, and all repeats agree. same: it lies within the
    margin. Else inconclusive. An end that is not known is open."""
    if ratio.value is None:
        return "not measured"
    if ratio.lo is None and ratio.hi is None:
        return "inconclusive"
    lo = 0.0 if ratio.lo is None else ratio.lo
    hi = math.inf if ratio.hi is None else ratio.hi
    if 1 - margin <= lo and hi <= 1 + margin:
        return "same"
    for beyond, side in ((lo > 1, True), (hi < 1, False)):
        agree = all((value > 1) == side for value in of_each if math.isfinite(value))
        if beyond and agree:
            return "better" if side == more_is_better else "worse"
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
