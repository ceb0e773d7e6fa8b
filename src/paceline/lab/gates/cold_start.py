"""Cold start gate: p95 of the time from process start to the first token, with nothing cached, and with caches warm.

Ten starts hold no p95 by rank. The bound is the one-sided 95 % tolerance limit of a lognormal law: with mean m and
deviation s of the logs of n times, exp(m + k s), k = nct.ppf(0.95, n - 1, z95 sqrt(n)) / sqrt(n) (Hahn and Meeker,
Statistical Intervals, 4.6). The sentence says that the law is assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from paceline.contracts.artefact import Answer, Estimate, GateResult
from paceline.lab.gates.evidence import Evidence, not_measured
from paceline.lab.gates.limits import at_most, shown
from paceline.lab.gates.spec import ColdStartGate


def cold_start_gate(evidence: Evidence, gate: ColdStartGate) -> list[GateResult]:
    results = []
    for kind, limit in (("cold", gate.cold_s), ("warm", gate.warm_s)):
        if limit is None:
            continue
        seconds = [start.seconds for start in evidence.starts if start.kind == kind]
        if not seconds:
            results.append(not_measured("cold_start", f"no {kind} start", kind))
            continue
        results.append(_judge(kind, seconds, limit, gate.min_starts))
    return results or [not_measured("cold_start", "the gate gives no budget")]


def p95_of(seconds: Sequence[float]) -> Estimate:
    """p95 and its one-sided bounds under a lognormal law. None for fewer than 3 starts."""
    from scipy.stats import nct, norm

    n = len(seconds)
    if n < 3:
        return Estimate(n=n, unit="s", reason=f"{n} starts: no interval")
    logs = [math.log(value) for value in seconds]
    mean, deviation = statistics.fmean(logs), statistics.stdev(logs)
    z = float(norm.ppf(0.95))
    low, high = (float(nct.ppf(q, n - 1, z * math.sqrt(n))) / math.sqrt(n) for q in (0.05, 0.95))
    if deviation < 1e-12:
        low = high = z
    return Estimate(
        value=math.exp(mean + z * deviation),
        lo=math.exp(mean + low * deviation),
        hi=math.exp(mean + high * deviation),
        n=n,
        n_eff=n,
        method="lognormal tolerance limits, 95 % each side",
        unit="s",
    )


def _judge(kind: str, seconds: Sequence[float], limit: float, min_starts: int) -> GateResult:
    estimate = p95_of(seconds)
    answer = at_most(estimate, limit)
    sentence = f"p95 of {len(seconds)} {kind} starts: {shown(estimate)} (lognormal assumed) against {limit:g} s"
    if len(seconds) < min_starts and answer is Answer.PASS:
        answer, sentence = Answer.INCONCLUSIVE, f"{sentence}; {min_starts} starts are asked"
    return GateResult(
        gate="cold_start",
        answer=answer,
        subject=kind,
        limit=limit,
        estimate=estimate,
        sentence=sentence,
        evidence={"seconds": [round(value, 4) for value in seconds]},
    )
