"""Goodput gate: not worse than the base by more than a margin, paired by request; at least so much; each class reaches
its share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.contracts.slo import Outcome
from paceline.errors import LabError
from paceline.lab.artefact import StoredRun
from paceline.lab.artefact.arms import align
from paceline.lab.artefact.differences import workload_of
from paceline.lab.gates.evidence import Evidence, Run, invalid, not_measured
from paceline.lab.gates.limits import at_least, shown
from paceline.lab.gates.spec import MIN_RATIO, GoodputGate
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.judge import judge, times_of
from paceline.lab.stats.distributions import normal_tail
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
    if gate.min_ratio is not None or evidence.base:
        results.append(_ratio(evidence, gate.min_ratio if gate.min_ratio is not None else MIN_RATIO))
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


def goodput_ratio(base: Run, run: Run) -> Ratio:
    """Goodput of `run` over that of `base`. Open loops pair by request: both were asked the same in the same time, so
    the share that is good is the rate. In a closed loop, and by later turns, a slower server is asked less: there the
    rates over time are compared, each arm by itself. Raises LabError for runs of different loads."""
    fix = "measure both with the same workload and seed"
    if base.info.closed_loop != run.info.closed_loop or workload_of(base.info) != workload_of(run.info):
        raise LabError("the two runs do not pair", seen="their workloads differ", fix=fix)
    if _asks_as_it_goes(base, run):
        return _rates_apart([base], [run])
    theirs, ours = paired_flags(base, run)
    if not ours or len(ours) < 0.5 * max(len(good_flags(base)), len(good_flags(run))):
        raise LabError("the two runs do not pair", seen=f"{len(ours)} requests in both", fix=fix)
    return mean_ratio(theirs, ours)


def _asks_as_it_goes(*runs: Run) -> bool:
    return any(run.info.closed_loop or any(record.turn for record in run.records) for run in runs)


def paired_flags(base: Run, run: Run) -> tuple[list[float], list[float]]:
    """1 for good, 0 for not, of the requests that both windows hold."""
    theirs, ours = good_flags(base), good_flags(run)
    both = [i for i in ours if i in theirs]
    return [float(theirs[i]) for i in both], [float(ours[i]) for i in both]


def _rates_apart(base: Sequence[Run], runs: Sequence[Run]) -> Ratio:
    """Good requests per second in the bins of all windows, each arm by itself. Where `runs` have no good request at
    all there is no spread of rates; then the shares say how sure that is."""
    arms = [align(cast(StoredRun, a), cast(StoredRun, b), paired=False)[:2] for a, b in zip(base, runs, strict=True)]
    name = "good_rate" if any(y.good.any() for _, y in arms) else "good"
    x, y = (np.concatenate([getattr(arm, name) for arm in side]) for side in zip(*arms, strict=True))
    return mean_ratio(x, y, paired=False)


def _ratio(evidence: Evidence, least: float) -> GateResult:
    if not evidence.base:
        return not_measured("goodput", "no base to compare with", "ratio to base")
    if len(evidence.base) != len(evidence.runs):
        raise LabError("base and candidate do not pair", seen=f"{len(evidence.base)} and {len(evidence.runs)} runs")
    pairs = [goodput_ratio(base, run) for base, run in zip(evidence.base, evidence.runs, strict=True)]
    ratio = _combine(pairs, evidence)
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


def _combine(pairs: Sequence[Ratio], evidence: Evidence) -> Ratio:
    """One pair: its own interval. Three and more: between repeats. Else all requests as if they were of one pair."""
    if len(pairs) == 1:
        return pairs[0]
    if len(pairs) >= _PAIRS and all(pair.value > 0 for pair in pairs):  # nan: no
        return ratio_of_repeats([math.log(pair.value) for pair in pairs])
    if _asks_as_it_goes(*evidence.base, *evidence.runs):
        found = _rates_apart(evidence.base, evidence.runs)
    else:
        flags = [paired_flags(base, run) for base, run in zip(evidence.base, evidence.runs, strict=True)]
        found = mean_ratio([f for x, _ in flags for f in x], [f for _, y in flags for f in y])
    return found._replace(method=f"{found.method}, {len(pairs)} pairs of runs pooled")


def worse_p(ratio: Ratio, least: float) -> float | None:
    """One-sided p of "the ratio is below `least`", the interval taken as normal in the log; None without one."""
    if math.isnan(ratio.lo) or math.isnan(ratio.hi) or ratio.lo <= 0:
        return None

    error = (math.log(ratio.hi) - math.log(ratio.lo)) / (2 * 1.96)
    distance = math.log(least) - math.log(ratio.value)
    if error <= 0:
        return 0.0 if distance > 0 else 1.0
    return normal_tail(distance / error)


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
