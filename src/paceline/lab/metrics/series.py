"""Time series for charts: what the run looked like while it went on. Pure, from the same records as `compute`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from paceline.contracts.artefact import RequestRecord, RunInfo, Window
from paceline.lab.metrics.columns import Bools, Columns, Floats, columns_of
from paceline.lab.metrics.flow import ends_of, in_flight_at, window_of
from paceline.lab.metrics.judge import judge, times_of

_MAX_BINS = 120
_MIN_BIN_S = 0.25


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One request as a dot: seconds since the start of the load, seconds of the time."""

    t_s: float  # planned time
    value_s: float
    slo_class: str
    good: bool


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Bins cover the whole run, warm-up and drain included; all lists have one value per bin, at `t_s` (its middle).

    A percentile of a bin is None where no request of that bin has the time. These are pictures, not evidence: no bin is
    large enough for an interval.
    """

    bin_s: float
    window: Window
    t_s: list[float]
    planned_rps: list[float]
    sent_rps: list[float]
    ended_ok_rps: list[float]
    failed_rps: list[float]
    good_rps: list[float]  # by planned time
    output_tokens_per_s: list[float]  # chunks without a count are left out
    in_flight: list[float]  # sent and not ended, at the bin's middle
    waiting: list[float]  # sent, no token yet
    ttft_p50_s: list[float | None]  # by planned time
    ttft_p90_s: list[float | None]
    tpot_p50_s: list[float | None]
    tpot_p90_s: list[float | None]
    lag_max_s: list[float | None]
    prefix_hit: list[float | None]
    ttft: list[Sample] = []  # the dots: streamed requests that ended well, thinned to `max_samples`
    tpot: list[Sample] = []
    e2e: list[Sample] = []


def series_of(
    info: RunInfo, records: Sequence[RequestRecord], *, bin_s: float | None = None, max_samples: int = 2000
) -> Series:
    """Bins of `bin_s` seconds (found if None: at most 120, at least a quarter of a second)."""
    c = columns_of(records)
    times = times_of(c)
    judged = judge(c, times, {s.name: s for s in info.slo})
    ends = ends_of(c)
    moments = np.concatenate([c.plan, c.send, c.close, ends, c.t, [info.span_s]])
    finish = float(np.nanmax(moments))
    size = bin_s or max(_MIN_BIN_S, finish / _MAX_BINS)
    num = max(1, int(np.ceil(finish / size + 1e-9)))
    edges = np.arange(num + 1) * size
    middle = np.asarray(edges[:-1] + size / 2, dtype=np.float64)

    def rate(at: Floats, who: Bools | None = None, weights: Floats | None = None) -> list[float]:
        use = np.isfinite(at) if who is None else np.isfinite(at) & who
        counts, _ = np.histogram(at[use], bins=edges, weights=None if weights is None else weights[use])
        return [float(x) for x in counts / size]

    place = np.where(np.isfinite(c.plan), np.minimum(c.plan // size, num - 1), -1).astype(np.int64)

    def quantile(values: Floats, q: float) -> list[float | None]:
        use = np.isfinite(values) & c.ok & (place >= 0)
        return _by_bin(values[use], place[use], num, q)

    cached = np.asarray([r.cached_tokens for r in c.records], dtype=np.float64)
    prompt = np.asarray([r.prompt_tokens for r in c.records], dtype=np.float64)
    told = (cached >= 0) & (prompt > 0) & (place >= 0)
    hits = np.bincount(place[told], weights=cached[told], minlength=num)
    asked = np.bincount(place[told], weights=prompt[told], minlength=num)
    lag = np.isfinite(times.lag) & (place >= 0)
    return Series(
        bin_s=size,
        window=window_of(info, c),
        t_s=[float(x) for x in middle],
        planned_rps=rate(c.plan),
        sent_rps=rate(c.send),
        ended_ok_rps=rate(ends, c.ok),
        failed_rps=rate(np.where(np.isfinite(ends), ends, c.plan), ~c.ok & ~c.left),
        good_rps=rate(c.plan, judged.good),
        output_tokens_per_s=rate(c.t, np.isfinite(c.count), c.count),
        in_flight=[float(x) for x in in_flight_at(c, middle)],
        waiting=_waiting(c, ends, middle),
        ttft_p50_s=quantile(times.ttft, 0.5),
        ttft_p90_s=quantile(times.ttft, 0.9),
        tpot_p50_s=quantile(times.tpot, 0.5),
        tpot_p90_s=quantile(times.tpot, 0.9),
        lag_max_s=_by_bin(times.lag[lag], place[lag], num, 1.0),
        prefix_hit=[float(h / a) if a > 0 else None for h, a in zip(hits, asked, strict=True)],
        ttft=_samples(c, times.ttft, judged.good, max_samples),
        tpot=_samples(c, times.tpot, judged.good, max_samples),
        e2e=_samples(c, times.e2e, judged.good, max_samples),
    )


def _waiting(columns: Columns, ends: Floats, at: Floats) -> list[float]:
    begin = columns.send
    until = np.fmin(columns.first, ends)
    known = np.isfinite(begin) & np.isfinite(until)
    begins, untils = np.sort(begin[known]), np.sort(until[known])
    counts = np.searchsorted(begins, at, side="right") - np.searchsorted(untils, at, side="right")
    return [float(x) for x in counts]


def _by_bin(
    values: Floats, place: np.ndarray[tuple[int, ...], np.dtype[np.int64]], num: int, q: float
) -> list[float | None]:
    """Inverted-CDF quantile of each bin."""
    order = np.lexsort((values, place))
    values, place = values[order], place[order]
    starts = np.searchsorted(place, np.arange(num + 1))
    found: list[float | None] = []
    for begin, end in pairwise(starts):
        count = int(end - begin)
        found.append(float(values[begin + max(0, int(np.ceil(q * count - 1e-9)) - 1)]) if count else None)
    return found


def _samples(columns: Columns, values: Floats, good: Bools, max_samples: int) -> list[Sample]:
    index = np.flatnonzero(columns.ok & np.isfinite(values) & np.isfinite(columns.plan))
    if len(index) > max_samples:
        index = index[np.linspace(0, len(index) - 1, max_samples).astype(np.int64)]
    return [
        Sample(float(columns.plan[i]), float(values[i]), columns.records[i].slo_class, bool(good[i])) for i in index
    ]
