"""Is the window one regime? Numbers from a server that is warming up or drowning are no property of it.

    saturated  requests in flight grow (Theil-Sen interval above 0, and by more than a quarter of their mean over the
               window) and TTFT rises (Mann-Kendall, or to three times from the first quarter to the last): the rate
               offered is more than the server carries
    warming    TTFT or TPOT falls (Mann-Kendall), by more than a tenth between the halves
    shifted    TTFT or TPOT jumps (Pettitt), by more than a tenth
    steady     none of these
    too short  fewer than 20 requests that ended well

The design follows windows in order of issue; p-values allow for neighbours being alike. Small drifts that are
significant only because there are many samples do not count: hence the sizes above.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from paceline.contracts.artefact import Window
from paceline.contracts.metrics import Steady
from paceline.lab.metrics.columns import Columns, Floats
from paceline.lab.metrics.flow import in_flight_at, inside
from paceline.lab.metrics.judge import Times
from paceline.lab.stats.trend import mann_kendall, pettitt, theil_sen, warmup_length

_MIN_REQUESTS = 20
_BINS = 40  # medians of so many groups of neighbours: enough to see a trend, few enough for their noise
_ALPHA = 0.01  # several looks at one run
_SIZE = 0.1
_GROWTH = 0.25
_CLIMB = 3.0


class _Look(NamedTuple):
    trend_p: float
    rises: bool
    change: float  # median of the second half over the first, minus 1
    shift_p: float
    jump: float


def steadiness(columns: Columns, times: Times, window: Window) -> Steady:
    """Looks at the requests planned in the window that ended well, in order of their planned time."""
    chosen = columns.ok & inside(columns.plan, window)
    plan = columns.plan[chosen]
    if len(plan) < _MIN_REQUESTS or window.seconds <= 0:
        return Steady(answer="too short", sentence=f"{len(plan)} requests ended well; {_MIN_REQUESTS} are needed.")
    ttft = np.where(np.isfinite(times.ttft), times.ttft, times.e2e)[chosen]
    tpot = times.tpot[chosen & np.isfinite(times.tpot)]
    looks = {"TTFT": _look(ttft)}
    if len(tpot) >= _MIN_REQUESTS:
        looks["TPOT"] = _look(tpot)
    grid = np.linspace(window.start_ns / 1e9, window.end_ns / 1e9, 4 * _BINS + 1)[:-1]
    flying = in_flight_at(columns, grid)
    slope = theil_sen(grid, flying)
    grows = slope.lo > 0 and slope.value * window.seconds > max(1.0, _GROWTH * float(flying.mean()))
    first = looks["TTFT"]
    common: dict[str, Any] = {
        "warmup_s": _warmup(plan, ttft, columns.plan[chosen & np.isfinite(times.tpot)], tpot, window),
        "trend_p": min(1.0, len(looks) * min(look.trend_p for look in looks.values())),
        "shift_p": min(1.0, len(looks) * min(look.shift_p for look in looks.values())),
        "in_flight_slope": slope.value if math.isfinite(slope.value) else None,
    }
    quarter = len(ttft) // 4
    climbs = float(np.median(ttft[-quarter:])) > _CLIMB * float(np.median(ttft[:quarter]))
    if grows and first.rises and (first.trend_p < _ALPHA or climbs):
        sentence = f"Requests in flight grow by {slope.value:.3g} per second and TTFT rises: more is offered than done."
        return Steady(answer="saturated", sentence=sentence, **common)
    for name, look in looks.items():
        if look.trend_p < _ALPHA and not look.rises and look.change < -_SIZE:
            sentence = f"{name} falls by {-100 * look.change:.0f} % between the halves: the server was warming up."
            return Steady(answer="warming", sentence=sentence, **common)
    for name, look in looks.items():
        if look.shift_p < _ALPHA and abs(look.jump) > _SIZE:
            sentence = f"{name} jumps by {100 * look.jump:+.0f} % within the window."
            return Steady(answer="shifted", sentence=sentence, **common)
        if look.trend_p < _ALPHA and look.change > _SIZE:
            sentence = f"{name} rises by {100 * look.change:.0f} % between the halves."
            return Steady(answer="shifted", sentence=sentence, **common)
    return Steady(answer="steady", sentence="No trend, no jump, no growing queue.", **common)


def _look(series: Floats) -> _Look:
    num = min(_BINS, len(series) // 2)
    medians = np.asarray([np.median(part) for part in np.array_split(series, max(num, 8))])
    trend, shift = mann_kendall(medians), pettitt(medians)
    half = len(series) // 2
    before, after = float(np.median(series[:half])), float(np.median(series[half:]))
    return _Look(
        trend_p=trend.p,
        rises=trend.z > 0,
        change=after / before - 1 if before > 0 else 0.0,
        shift_p=shift.p,
        jump=shift.after / shift.before - 1 if shift.before > 0 else 0.0,
    )


def _warmup(plan: Floats, ttft: Floats, tpot_plan: Floats, tpot: Floats, window: Window) -> float:
    """Seconds after the window's start that MSER-5 would drop, by TTFT or by TPOT: the longer."""
    found = 0.0
    for series, at in ((ttft, plan), (tpot, tpot_plan)):
        cut = warmup_length(series)
        if cut:
            found = max(found, float(at[cut]) - window.start_ns / 1e9)
    return found
