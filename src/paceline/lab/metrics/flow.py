"""What flows through the server during the window: tokens by their own time, requests in flight, Little's law."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.contracts.artefact import Estimate, RunInfo, Window
from paceline.lab.metrics.columns import Bools, Columns, Floats
from paceline.lab.stats.bootstrap import mean_estimate

_MIN_BINS = 10
_UNCOUNTED_SHARE = 0.5  # of the window's token chunks: above it a token rate is refused


def window_of(info: RunInfo, columns: Columns) -> Window:
    """The run's window; cut where an interrupted run stopped, for nothing was offered after that."""
    window = info.window
    if info.status == "complete" or not len(columns):
        return window
    times = np.concatenate([columns.send, columns.close])
    times = times[np.isfinite(times)]
    stopped = int(times.max() * 1e9) if len(times) else 0
    return Window(start_ns=window.start_ns, end_ns=max(window.start_ns, min(window.end_ns, stopped)))


def inside(times: Floats, window: Window) -> Bools:
    """start <= t < end; nan is outside."""
    return np.asarray((times >= window.start_ns / 1e9) & (times < window.end_ns / 1e9))


def token_bins(columns: Columns, window: Window) -> Floats:
    """Tokens in each of equal bins of the window: of a second or a little more, at least 10 of them."""
    here = inside(columns.t, window) & np.isfinite(columns.count)
    num_bins = max(_MIN_BINS, int(window.seconds))
    edges = np.linspace(window.start_ns / 1e9, window.end_ns / 1e9, num_bins + 1)
    bins, _ = np.histogram(columns.t[here], bins=edges, weights=columns.count[here])
    return np.asarray(bins, dtype=np.float64)


def output_rate(columns: Columns, window: Window) -> Estimate:
    """Tokens per second of the window, by the time each token came, whenever its request was planned or ended.

    Interval: block bootstrap over bins of at least a second, at least 10 of them. Chunks without a token count are
    left out, and the value is then a lower bound; it is refused where they are more than half.
    """
    seconds = window.seconds
    if seconds <= 0:
        return Estimate(unit="tokens/s", reason="the window is empty")
    here = inside(columns.t, window)
    counted = here & np.isfinite(columns.count)
    uncounted = int(here.sum() - counted.sum())
    if uncounted > _UNCOUNTED_SHARE * max(1, int(here.sum())):
        return Estimate(n=int(here.sum()), unit="tokens/s", reason="most chunks came without a token count")
    bins = token_bins(columns, window)
    rate = mean_estimate(bins, scale=len(bins) / seconds, unit="tokens/s")
    planned = int(inside(columns.plan, window).sum())
    if planned == 1:
        return Estimate(value=rate.value, n=1, unit="tokens/s", reason="one request: not a throughput")
    reason = f"lower bound: {uncounted} of {int(here.sum())} chunks have no token count" if uncounted else rate.reason
    return Estimate(
        value=rate.value, lo=rate.lo, hi=rate.hi, n=int(here.sum()), n_eff=rate.n_eff, method=rate.method,
        unit="tokens/s", reason=reason,
    )  # fmt: skip


def ends_of(columns: Columns) -> Floats:
    """[n] when a request left the system: its last token; its close where it failed; nan if it never was in."""
    return np.where(columns.ok, columns.last, np.where(np.isfinite(columns.send), columns.close, np.nan))


class InFlight(NamedTuple):
    mean: float | None
    littles_law_error: float | None
    reason: str  # why there is no error, or why it says little


def in_flight(columns: Columns, window: Window) -> InFlight:
    """Mean number of requests between planned time and end over the window, and how far that is from rate x mean E2E.

    Little's law holds for whole histories; a window cuts requests at both edges, so below ten mean E2E it says little.
    """
    seconds = window.seconds
    begin, end = columns.plan, ends_of(columns)
    known = np.isfinite(begin) & np.isfinite(end)
    if seconds <= 0 or not known.any():
        return InFlight(None, None, "no request with a beginning and an end")
    overlap = np.minimum(end[known], window.end_ns / 1e9) - np.maximum(begin[known], window.start_ns / 1e9)
    mean = float(np.maximum(overlap, 0.0).sum() / seconds)
    arrived = known & inside(begin, window)
    if not arrived.any():
        return InFlight(mean, None, "no request was planned in the window")
    stay = end[arrived] - begin[arrived]
    expected = float(stay.sum() / seconds)  # rate x mean E2E
    if expected <= 0:
        return InFlight(mean, None, "requests took no time")
    short = seconds < 10 * float(stay.mean())
    return InFlight(mean, abs(mean - expected) / expected, "the window is shorter than ten mean E2E" if short else "")


def in_flight_at(columns: Columns, times: Floats) -> Floats:
    """Requests sent and not yet ended at each of `times`."""
    begin, end = columns.send, ends_of(columns)
    known = np.isfinite(begin) & np.isfinite(end)
    begins, ends = np.sort(begin[known]), np.sort(end[known])
    started = np.searchsorted(begins, times, side="right")
    return np.asarray(started - np.searchsorted(ends, times, side="right"), dtype=np.float64)
