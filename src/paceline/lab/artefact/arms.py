"""The samples of two runs that a comparison draws from, request by request or bin by bin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.contracts.artefact import Window
from paceline.lab.artefact.store import StoredRun
from paceline.lab.metrics.columns import Bools, Columns, Floats, Ints, columns_of
from paceline.lab.metrics.flow import inside, token_bins, window_of
from paceline.lab.metrics.judge import Judgement, Times, judge, times_of

TERMS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Arm:
    """[k] values in order of the plan; of paired arms the i-th values belong to the same request."""

    window: Window
    good: Floats  # 1 or 0, of all requests of the window
    counted: Floats  # 1 or 0, of those in the denominator of attainment
    times: dict[str, Floats]  # seconds; +inf where the request failed
    token_rate: Floats  # output tokens/s in each bin of the window
    good_rate: Floats  # good requests/s by planned time, in the same bins


@dataclass(frozen=True, slots=True)
class _Side:
    columns: Columns
    times: Times
    judged: Judgement
    window: Window
    members: Ints  # places of the window's requests, in order of the plan

    @classmethod
    def of(cls, run: StoredRun) -> _Side:
        columns = columns_of(run.records)
        times = times_of(columns)
        window = window_of(run.info, columns)
        judged = judge(columns, times, {c.name: c for c in run.info.slo})
        return cls(columns, times, judged, window, np.flatnonzero(inside(columns.plan, window)))

    def ids(self) -> list[int]:
        return [self.columns.records[i].id for i in self.members]

    def usable(self, term: str) -> Bools:
        """[n] requests that a percentile of `term` is over."""
        c = self.columns
        use = self.judged.counts.copy()
        if term != "e2e":
            use &= c.streamed
        if term == "tpot":
            use &= ~(c.ok & self.times.vacuous)
        return use

    def seconds(self, term: str) -> Floats:
        values: Floats = getattr(self.times, term)
        return np.where(self.columns.ok & np.isfinite(values), values, math.inf)


def align(a: StoredRun, b: StoredRun, *, paired: bool) -> tuple[Arm, Arm, int]:
    """Both arms, and the number of requests in both. Paired: only requests that both windows hold, in one order."""
    x, y = _Side.of(a), _Side.of(b)
    if not paired:
        return _arm(x, x.members, None), _arm(y, y.members, None), 0
    place = dict(zip(y.ids(), y.members.tolist(), strict=True))
    pairs = [(i, place[n]) for n, i in zip(x.ids(), x.members.tolist(), strict=True) if n in place]
    left = np.asarray([i for i, _ in pairs], dtype=np.int64)
    right = np.asarray([j for _, j in pairs], dtype=np.int64)
    counts = x.judged.counts[left] & y.judged.counts[right]
    both = {term: x.usable(term)[left] & y.usable(term)[right] for term in TERMS}
    keep = {**both, "counts": counts}
    return _arm(x, left, keep), _arm(y, right, keep), len(pairs)


def _arm(side: _Side, members: Ints, keep: dict[str, Bools] | None) -> Arm:
    good = side.judged.good.astype(np.float64)
    masks = keep or {"counts": side.judged.counts[members], **{term: side.usable(term)[members] for term in TERMS}}
    bins = token_bins(side.columns, side.window)
    edges = np.linspace(side.window.start_ns / 1e9, side.window.end_ns / 1e9, len(bins) + 1)
    good_bins, _ = np.histogram(side.columns.plan[side.judged.good], bins=edges)
    width = max(1e-9, side.window.seconds / len(bins))
    return Arm(
        window=side.window,
        good=good[members],
        counted=good[members][masks["counts"]],
        times={term: side.seconds(term)[members][masks[term]] for term in TERMS},
        token_rate=bins / width,
        good_rate=good_bins / width,
    )
