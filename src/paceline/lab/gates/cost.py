"""Cost per million good tokens, and joules per good token. A token is good when its request was.

    cost    = price per hour / 3600 / (good tokens per second) * 1e6
    joules  = joules of the window / (good tokens per second * seconds of the window)

The price is the user's. The energy is what the meter of the run covers, and the sentence says which one it was.
"""

from __future__ import annotations

from paceline.contracts.artefact import Estimate, GateResult
from paceline.lab.gates.evidence import Evidence, Run, invalid, not_measured
from paceline.lab.gates.goodput import joined_good_tokens
from paceline.lab.gates.limits import at_most, shown
from paceline.lab.gates.spec import CostGate, EnergyGate


def cost_gate(evidence: Evidence, gate: CostGate) -> list[GateResult]:
    if not evidence.runs:
        return [not_measured("cost", "no run")]
    broken = invalid("cost", evidence.runs)
    if broken is not None:
        return [broken]
    unit = f"{gate.currency} per million good tokens"
    estimate = per_good_token(joined_good_tokens(evidence.runs), gate.price_per_hour / 3600 * 1e6, unit)
    limit = gate.max_per_million_good_tokens
    return [
        GateResult(
            gate="cost",
            answer=at_most(estimate, limit),
            limit=limit,
            estimate=estimate,
            sentence=f"{shown(estimate)} at {gate.price_per_hour:g} {gate.currency} an hour, "
            f"at most {limit:g} is asked",
        )
    ]


def energy_gate(evidence: Evidence, gate: EnergyGate) -> list[GateResult]:
    if not evidence.runs:
        return [not_measured("energy", "no run")]
    broken = invalid("energy", evidence.runs)
    if broken is not None:
        return [broken]
    watts = mean_watts(evidence.runs[0])
    if len(evidence.runs) > 1:
        each = [mean_watts(run) for run in evidence.runs]
        known = [value for value in each if value is not None]
        watts = sum(known) / len(known) if len(known) == len(each) else None
    if watts is None:
        return [not_measured("energy", "no meter was read over the whole window")]
    estimate = per_good_token(joined_good_tokens(evidence.runs), watts, "J per good token")
    limit = gate.max_joules_per_good_token
    source = evidence.runs[0].info.energy.get("source", "")
    return [
        GateResult(
            gate="energy",
            answer=at_most(estimate, limit),
            limit=limit,
            estimate=estimate,
            sentence=f"{shown(estimate)} at {watts:.3g} W ({source}), at most {limit:g} is asked",
            evidence={"watts": watts, "source": source, "covers": evidence.runs[0].info.energy.get("covers", "")},
        )
    ]


def per_good_token(tokens_per_s: Estimate, per_second: float, unit: str) -> Estimate:
    """`per_second` spent, over good tokens per second; the interval turns round with the division."""
    if not tokens_per_s.value:
        reason = tokens_per_s.reason or "no token was good: the cost of one has no limit"
        return Estimate(reason=reason, unit=unit, n=tokens_per_s.n)
    return Estimate(
        value=per_second / tokens_per_s.value,
        lo=per_second / tokens_per_s.hi if tokens_per_s.hi else None,
        hi=per_second / tokens_per_s.lo if tokens_per_s.lo else None,
        n=tokens_per_s.n,
        n_eff=tokens_per_s.n_eff,
        method=tokens_per_s.method,
        unit=unit,
    )


def mean_watts(run: Run) -> float | None:
    """Over the window; None where nothing was read."""
    joules, seconds = run.info.energy.get("joules"), run.info.window.seconds
    return float(joules) / seconds if isinstance(joules, int | float) and seconds > 0 else None
