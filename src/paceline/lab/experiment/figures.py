"""The figures that points, nodes and edges are compared by, out of stored runs. Names and units: `results.FIGURES`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.contracts.artefact import Estimate, RequestRecord, RunInfo
from paceline.contracts.metrics import RunMetrics
from paceline.lab.experiment.results import FIGURES, PointResult
from paceline.lab.metrics.columns import Floats, columns_of
from paceline.lab.metrics.judge import judge, times_of
from paceline.lab.stats.distributions import t_quantile


def figures_of(info: RunInfo, metrics: RunMetrics) -> dict[str, Estimate]:
    """Of one run. What could not be measured is absent, or an Estimate without a value that says why."""
    whole = metrics.whole
    found = {
        "goodput_rps": whole.goodput_rps,
        "attainment": whole.attainment,
        "good_tokens_per_s": whole.good_tokens_per_s,
        "output_tokens_per_s": metrics.output_tokens_per_s,
        "prefix_hit": whole.prefix_hit,
    }
    for name in ("ttft", "tpot", "e2e"):
        if name in whole.latency:
            found[f"{name}_p50_s"] = whole.latency[name].p50
            found[f"{name}_p95_s"] = whole.latency[name].p95
    joules, rate = info.energy.get("joules"), whole.good_tokens_per_s.value
    if joules is not None and rate:
        per_token = joules / (rate * metrics.window.seconds)
        found["joules_per_good_token"] = Estimate(value=per_token, unit="J", method="energy of the window, one reading")
    return found


class Samples(dict[str, Floats]):
    """figure -> one value for each request of the window, in order of the plan; failed requests are infinitely late."""


def samples_of(info: RunInfo, records: Sequence[RequestRecord]) -> tuple[list[int], Samples]:
    """(ids, samples) of the requests planned in the window."""
    inside = [r for r in records if info.window.start_ns <= r.t_plan_ns < info.window.end_ns]
    columns = columns_of(inside)
    times = times_of(columns)
    verdict = judge(columns, times, {terms.name: terms for terms in info.slo})
    good = verdict.good.astype(np.float64)
    tokens = np.where(np.isnan(columns.tokens), 0.0, columns.tokens)
    counted = np.where(verdict.counts, good, np.nan)
    found = Samples(goodput_rps=good, attainment=counted, good_tokens_per_s=good * tokens)
    for name in ("ttft", "tpot", "e2e"):
        late = np.where(columns.ok, getattr(times, name), math.inf)
        found[f"{name}_p50_s"] = found[f"{name}_p95_s"] = late
    return [record.id for record in columns.records], found


def over_repeats(points: Sequence[PointResult]) -> dict[str, Estimate]:
    """Figures of a node: the mean over its repeats, with their spread as the interval: the range for fewer than three
    (an interval of two values would promise too much), else Student's t. Where there are several rates, a repeat is the
    mean over them: how rates differ is no uncertainty."""
    found = {}
    for name, (unit, _) in FIGURES.items():
        known = [(p, e) for p in points if (e := p.figures.get(name)) is not None and e.value is not None]
        values = _of_repeats(known)
        if not values:
            continue
        mean = math.fsum(values) / len(values)
        if len(known) == 1:
            found[name] = known[0][1]
        elif len(values) == 1:
            method = f"mean over {len(known)} rates"
            found[name] = Estimate(value=mean, n=1, unit=unit, method=method, reason="one repeat: no interval")
        elif len(values) == 2:
            found[name] = Estimate(value=mean, lo=min(values), hi=max(values), n=2, unit=unit, method="range of 2 runs")
        else:
            lo, hi = _t_interval(values)
            found[name] = Estimate(
                value=mean, lo=lo, hi=hi, n=len(values), unit=unit, method=f"t interval 95 % over {len(values)} runs"
            )
    return found


def _of_repeats(known: Sequence[tuple[PointResult, Estimate]]) -> list[float]:
    """One value for each repeat that has all rates; where none has, for each as it is."""
    by_repeat: dict[int, dict[float | None, float]] = {}
    for point, estimate in known:
        assert estimate.value is not None, "chosen by the caller"
        by_repeat.setdefault(point.repeat, {})[point.rate_rps] = estimate.value
    num_rates = len({rate for values in by_repeat.values() for rate in values})
    whole = [values for values in by_repeat.values() if len(values) == num_rates] or list(by_repeat.values())
    return [math.fsum(values.values()) / len(values) for values in whole]


def _t_interval(values: Sequence[float]) -> tuple[float, float]:

    x = np.asarray(values)
    half = t_quantile(0.975, len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half
