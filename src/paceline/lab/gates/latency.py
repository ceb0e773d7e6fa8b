"""TTFT and TPOT gates: the upper bound of a percentile against the target of each class.

Failed requests count as +inf: a request without a first token did not meet any target. A TPOT that does not exist since
all tokens came at once is left out. Requests whose client left on purpose are left out, unless a target was missed
before they left; requests that are not streamed show no such time. Repeats are taken together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.contracts.workload import SloClass
from paceline.lab.gates.evidence import Evidence, Run, invalid, not_measured
from paceline.lab.gates.limits import at_most, shown
from paceline.lab.gates.spec import LatencyGate, TpotGate, TtftGate
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.judge import judge, limit_of, times_of
from paceline.lab.stats.order import is_infinite, percentile_estimate

Floats = NDArray[np.float64]
_HIGHEST = 0.999  # percentile: a class that asks for every request has no percentile of its own


def ttft_gate(evidence: Evidence, gate: TtftGate) -> list[GateResult]:
    return _gate("ttft", "ttft", evidence.runs, gate)


def tpot_gate(evidence: Evidence, gate: TpotGate) -> list[GateResult]:
    found = _gate("tpot", "tpot", evidence.runs, gate)
    if gate.icl_max:
        wants = [c for run in evidence.runs[:1] for c in run.info.slo if c.icl_max_s is not None]
        if wants:
            found += _gate("tpot", "icl_max", evidence.runs, gate, label="longest gap", limit=False)
    if gate.overload:
        found += _gate("tpot", "tpot", evidence.overload, gate, label="above the target rate")
    return found


def _gate(
    name: str, term: str, runs: Sequence[Run], gate: LatencyGate, *, label: str = "", limit: bool = True
) -> list[GateResult]:
    if not runs:
        return [not_measured(name, f"no run{f' {label}' if label else ''}", label)]
    broken = invalid(name, runs, label)
    if broken is not None:
        return [broken]
    classes = {c.name: c for c in runs[0].info.slo}
    results = []
    for slo_class in classes.values():
        if gate.classes and slo_class.name not in gate.classes:
            continue
        target = gate.limit_s if limit and gate.limit_s is not None else limit_of(slo_class, term)
        if target is None:
            continue
        samples = np.concatenate([samples_of(run, slo_class, term) for run in runs])
        subject = f"{slo_class.name}{f', {label}' if label else ''}"
        share = min(slo_class.share, _HIGHEST) if gate.percentile is None else gate.percentile
        results.append(_judge(name, term, subject, samples, target, share))
    return results or [not_measured(name, f"no class has a target for {term}", label)]


def samples_of(run: Run, slo_class: SloClass, term: str) -> Floats:
    """Seconds of the requests of a class in the window, in order of the plan; +inf where the request failed."""
    window = run.info.window
    inside = [
        r for r in run.records if window.start_ns <= r.t_plan_ns < window.end_ns and r.slo_class == slo_class.name
    ]
    columns = columns_of(inside)
    times = times_of(columns)
    judged = judge(columns, times, {slo_class.name: slo_class})
    values: Floats = np.asarray(np.round(getattr(times, term), 9), dtype=np.float64)  # stamps are nanoseconds
    values[~columns.ok] = np.inf
    keep = judged.counts & columns.streamed & ~np.isnan(values)
    return values[keep]


def _judge(name: str, term: str, subject: str, samples: Floats, target: float, q: float) -> GateResult:
    estimate: Estimate = percentile_estimate(samples, q)
    answer = at_most(estimate, target)
    if is_infinite(estimate) and estimate.lo is None and float(np.isinf(samples).mean()) > 1 - q:
        answer = Answer.FAIL  # so many failed that the percentile lies among them, its lower bound too
    words = {"ttft": "TTFT", "tpot": "TPOT", "icl_max": "longest gap"}[term]
    failed = int(np.isinf(samples).sum())
    tail = f"; {failed} of {len(samples)} requests failed" if failed else ""
    return GateResult(
        gate=name,
        answer=answer,
        subject=subject,
        limit=target,
        estimate=estimate,
        sentence=f"{words} p{100 * q:g} of {subject}: {shown(estimate)} against {target:g} s{tail}",
        evidence={"n": len(samples), "num_failed": failed, "percentile": q},
    )
