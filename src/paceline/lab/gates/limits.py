"""The rule of every gate with an interval: pass if all of it is within the limit, fail if none of it is, else
inconclusive."""

from __future__ import annotations

from paceline.contracts.artefact import Answer, Estimate


def at_most(estimate: Estimate, limit: float) -> Answer:
    """A missing bound is as bad as it can be for a pass; it can fail only by the bound that exists."""
    if estimate.value is None and estimate.lo is None:
        return Answer.INCONCLUSIVE
    if estimate.hi is not None and estimate.value is not None and estimate.hi <= limit:
        return Answer.PASS
    low = estimate.lo if estimate.lo is not None else None
    return Answer.FAIL if low is not None and low > limit else Answer.INCONCLUSIVE


def at_least(estimate: Estimate, limit: float) -> Answer:
    if estimate.value is None:
        return Answer.INCONCLUSIVE
    if estimate.lo is not None and estimate.lo >= limit:
        return Answer.PASS
    return Answer.FAIL if estimate.hi is not None and estimate.hi < limit else Answer.INCONCLUSIVE


def shown(estimate: Estimate, *, scale: float = 1.0, digits: int = 3, unit: str | None = None) -> str:
    """`0.412 [0.398, 0.431] s`, or why there is no number."""
    unit = estimate.unit if unit is None else unit
    if estimate.value is None:
        return estimate.reason or "no number"
    text = f"{estimate.value * scale:.{digits}g}"
    if estimate.lo is not None or estimate.hi is not None:
        low = "-" if estimate.lo is None else f"{estimate.lo * scale:.{digits}g}"
        high = "-" if estimate.hi is None else f"{estimate.hi * scale:.{digits}g}"
        text += f" [{low}, {high}]"
    return f"{text} {unit}".rstrip()
