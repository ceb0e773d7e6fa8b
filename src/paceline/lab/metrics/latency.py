"""Distributions of times: of the requests that have one (tables), or of all with failures at +inf (decisions)."""

from __future__ import annotations

import math

import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.contracts.metrics import Latency
from paceline.lab.metrics.columns import Bools, Columns, Floats, Ints
from paceline.lab.stats.dependence import correlation_time
from paceline.lab.stats.order import finite, percentile_estimate, ranks_for, refusal

QUANTILES = (0.50, 0.90, 0.95, 0.99)


def latency_of(values: Floats, *, num_undefined: int = 0) -> Latency:
    """Of [k] seconds in order of the plan; +inf allowed, nan not."""
    ordered = np.sort(values)
    p50, p90, p95, p99 = (percentile_estimate(values, q, ordered=ordered) for q in QUANTILES)
    whole = len(values) > 0 and math.isfinite(float(ordered[-1]))
    return Latency(
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        mean=float(values.mean()) if whole else None,
        max=float(ordered[-1]) if whole else None,
        n=len(values),
        num_undefined=num_undefined,
    )


class Gaps:
    """All gaps between token chunks of a run, sorted once, from which groups of requests take theirs.

    `spread` False: ICL, each gap once. True: ITL, each gap divided by the tokens it brought and counted as often; a
    chunk that brought no token passes its gap on to the next. Requests are the independent units, not their gaps.
    """

    def __init__(self, columns: Columns, *, spread: bool) -> None:
        owner = columns.owner
        keep = np.ones(len(owner), dtype=bool)
        keep &= (columns.ok & columns.streamed)[owner]
        if spread:
            head = np.zeros(len(owner), dtype=bool)
            head[columns.start[:-1][np.diff(columns.start) > 0]] = True
            keep &= np.isfinite(columns.count) & (head | (columns.count > 0))
        who, t = owner[keep], columns.t[keep]
        same = who[1:] == who[:-1]
        gap = np.diff(t)[same]
        weight = columns.count[keep][1:][same] if spread else np.ones(len(gap))
        if spread:
            gap = gap / weight
        order = np.argsort(gap, kind="stable")
        self.gap: Floats = gap[order]
        self.weight: Floats = weight[order]
        self.owner: Ints = who[1:][same][order]
        self.num_requests = len(columns)

    def latency(self, members: Bools) -> Latency:
        """`members`: [n] requests of the group."""
        inside = members[self.owner]
        gap, weight, owner = self.gap[inside], self.weight[inside], self.owner[inside]
        if not len(gap):
            nothing = [Estimate(unit="s", reason=refusal(0, q)) for q in QUANTILES]
            return Latency(p50=nothing[0], p90=nothing[1], p95=nothing[2], p99=nothing[3])
        cumulative = np.cumsum(weight)
        total = np.bincount(owner, weights=weight, minlength=self.num_requests).astype(np.float64)
        active = total > 0
        estimates = [self._estimate(q, gap, weight, owner, cumulative, total, active) for q in QUANTILES]
        p50, p90, p95, p99 = estimates
        return Latency(
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            mean=float(gap @ weight / cumulative[-1]),
            max=float(gap[-1]),
            n=round(float(cumulative[-1])),
        )

    def _estimate(
        self, q: float, gap: Floats, weight: Floats, owner: Ints, cumulative: Floats, total: Floats, active: Bools
    ) -> Estimate:
        whole = float(cumulative[-1])
        n = round(whole)
        why = refusal(n, q)
        if why:
            return Estimate(n=n, unit="s", reason=why)

        def at(share: float) -> float:
            return float(gap[min(len(gap) - 1, int(np.searchsorted(cumulative, share * whole - 1e-9 * whole)))])

        value = at(q)
        below = int(np.searchsorted(gap, value, side="right"))
        inside = np.bincount(owner[:below], weights=weight[:below], minlength=self.num_requests)[active]
        share = float(inside.sum()) / whole
        residual = inside - share * total[active]
        clusters = len(residual)
        variance = float(residual @ residual) * clusters / max(1, clusters - 1) / whole**2
        variance *= correlation_time(residual)
        n_eff = float(clusters) if variance <= 0 else min(float(n), share * (1 - share) / variance)
        n_eff = max(1.0, n_eff)
        low, high, method = ranks_for(n, n_eff, q)
        return finite(
            value,
            None if low is None else at(low / n),
            None if high is None else at(high / n),
            n=n,
            n_eff=n_eff,
            method=f"{method}, by request",
            unit="s",
            reason="" if high is not None else f"worth {n_eff:.0f} independent samples: no upper bound",
        )
