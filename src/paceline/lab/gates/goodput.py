"""Goodput gate: not worse than the base by more than a margin, paired by request; at least so much; each class reaches
its share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.contracts.slo import Outcome
from paceline.errors import LabError
from paceline.lab.gates.evidence import Evidence, Run, invalid, not_measured
from paceline.lab.gates.limits import at_least, shown
from paceline.lab.gates.spec import GoodputGate
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.judge import judge, times_of
from paceline.lab.stats.paired import Ratio, mean_ratio, non_inferior, ratio_of_repeats

_ANSWERS = {"not worse": Answer.PASS, "worse": Answer.FAIL, "inconclusive": Answer.INCONCLUSIVE}
_PAIRS = 3  # from so many pairs of runs on, the interval is that between repeats


def goodput_gate(evidence: Evidence, gate: GoodputGate) -> list[GateResult]:
    if not evidence.runs:
        return [not_measured("goodput", "no run")]
    broken = invalid("goodput", [*evidence.runs, *evidence.base])
    if broken is not None:
        return [broken]
    results = []
    if gate.min_ratio is not None:
        results.append(_ratio(evidence, gate.min_ratio))
    if gate.min_rps is not None:
        results += [_absolute(run, gate.min_rps, i, len(evidence.runs)) for i, run in enumerate(evidence.runs)]
    if gate.attainment:
        results += [each for run in evidence.runs for each in _attainment(run)]
    return results or [not_measured("goodput", "the gate asks for nothing")]


def good_flags(run: Run) -> dict[int, bool]:
    """Request id -> good, of the requests planned in the window."""
    window = run.info.window
    inside = [r for r in run.records if window.start_ns <= r.t_plan_ns < window.end_ns]
    columns = columns_of(inside)
    judged = judge(columns, times_of(columns), {c.name: c for c in run.info.slo})
    return {record.id: bool(good) for record, good in zip(columns.records, judged.good, strict=True)}


def paired_ratio(base: Run, run: Run) -> Ratio:
    """Good requests of `run` over those of `base`, over the requests both planned. Raises LabError without any."""
    ours, theirs = good_flags(run), good_flags(base)
    both = [i for i in ours if i in theirs]
    if not both or len(both) < 0.5 * max(len(ours), len(theirs)):
        raise LabError(
            "the two runs do not pair",
            seen=f"{len(both)} requests in both, of {len(theirs)} and {len(ours)}",
            fix="measure both with the same workload and seed",
        )
    return mean_ratio([float(theirs[i]) for i in both], [float(ours[i]) for i in both])


def _ratio(evidence: Evidence, least: float) -> GateResult:
    if not evidence.base:
        return not_measured("goodput", "no base to compare with", "ratio to base")
    if len(evidence.base) != len(evidence.runs):
        raise LabError("base and candidate do not pair", seen=f"{len(evidence.base)} and {len(evidence.runs)} runs")
    pairs = [paired_ratio(base, run) for base, run in zip(evidence.base, evidence.runs, strict=True)]
    ratio = _combine(pairs)
    found = non_inferior(ratio, 1 - least, higher_is_better=True)
    bounds = [None if math.isnan(bound) else bound for bound in (ratio.lo, ratio.hi)]
    value = None if math.isnan(ratio.value) else ratio.value
    estimate = Estimate(value=value, lo=bounds[0], hi=bounds[1], n=ratio.n, method=ratio.method, unit="x",
                        reason="" if value is not None else "the base has no good request")  # fmt: skip
    return GateResult(
        gate="goodput",
        answer=_ANSWERS[found.answer],
        subject="ratio to base",
        limit=least,
        estimate=estimate,
        sentence=f"goodput over the base's: {shown(estimate)}, at least {least:g} is asked",
        evidence={"worse_p": worse_p(ratio, least), "pairs": [pair.value for pair in pairs]},
    )


def _combine(pairs: Sequence[Ratio]) -> Ratio:
    """One pair: its own interval. A few: the mean of their logs, with the widths pooled. More: between repeats."""
    values = [pair.value for pair in pairs]
    if len(pairs) == 1 or any(math.isnan(value) or value <= 0 for value in values):
        return pairs[0] if len(pairs) == 1 else Ratio(math.nan, math.nan, math.nan, math.nan, len(pairs), "no ratio")
    logs = [math.log(value) for value in values]
    if len(pairs) >= _PAIRS:
        return ratio_of_repeats(logs)
    centre = sum(logs) / len(logs)
    spread = [max(math.log(pair.hi) - math.log(pair.value), math.log(pair.value) - math.log(pair.lo)) for pair in pairs]
    half = math.sqrt(sum(each * each for each in spread)) / len(spread)
    total = sum(pair.n for pair in pairs)
    low, high = math.exp(centre - half), math.exp(centre + half)
    return Ratio(math.exp(centre), low, high, math.nan, total, "paired bootstrap 95 %, two pairs of runs pooled")


def worse_p(ratio: Ratio, least: float) -> float | None:
    """One-sided p of "the ratio is below `least`", the interval taken as normal in the log; None without one."""
    if math.isnan(ratio.lo) or math.isnan(ratio.hi) or ratio.lo <= 0:
        return None
    from scipy.stats import norm

    error = (math.log(ratio.hi) - math.log(ratio.lo)) / (2 * 1.96)
    distance = math.log(least) - math.log(ratio.value)
    if error <= 0:
        return 0.0 if distance > 0 else 1.0
    return float(norm.sf(distance / error))


def _absolute(run: Run, least: float, index: int, count: int) -> GateResult:
    estimate = run.metrics.whole.goodput_rps
    subject = "good requests per second" + (f", repeat {index + 1}" if count > 1 else "")
    return GateResult(
        gate="goodput",
        answer=at_least(estimate, least),
        subject=subject,
        limit=least,
        estimate=estimate,
        sentence=f"goodput {shown(estimate, unit='req/s')}, at least {least:g} is asked",
    )


def _attainment(run: Run) -> list[GateResult]:
    groups = {g.name: g for g in run.metrics.groups if g.kind == "class"}
    results = []
    for slo_class in run.info.slo:
        group = groups.get(slo_class.name)
        if group is None:
            continue
        estimate = group.attainment
        failed = sum(count for name, count in group.outcomes.items() if name != Outcome.OK)
        results.append(
            GateResult(
                gate="goodput",
                answer=at_least(estimate, slo_class.share),
                subject=f"attainment of {slo_class.name}",
                limit=slo_class.share,
                estimate=estimate,
                sentence=f"{shown(estimate, scale=100, unit='%')} of {slo_class.name} were good, "
                f"{100 * slo_class.share:g} % are asked; {failed} of {group.num_requests} did not end well",
                evidence={"missed": dict(group.missed)},
            )
        )
    return results


def joined_good_tokens(runs: Sequence[Run]) -> Estimate:
    """Good tokens per second over all repeats, with the widest of their intervals."""
    parts = [run.metrics.whole.good_tokens_per_s for run in runs]
    values = [part.value for part in parts if part.value is not None]
    if len(values) < len(parts) or not values:
        return Estimate(reason="the good tokens of a run are not known", unit="tokens/s")
    lows = [part.lo for part in parts if part.lo is not None]
    highs = [part.hi for part in parts if part.hi is not None]
    return Estimate(
        value=float(np.mean(values)),
        lo=min(lows) if len(lows) == len(parts) else None,
        hi=max(highs) if len(highs) == len(parts) else None,
        n=sum(part.n for part in parts),
        method=parts[0].method if len(parts) == 1 else "widest interval of the repeats",
        unit="tokens/s",
    )
