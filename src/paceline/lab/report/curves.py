"""Curves that charts draw of columns of times: distributions, levels, rates and quantiles in bins. Plain arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_POINTS = 400  # of a curve
MAX_DOTS = 1500  # of a cloud


def slower_than(samples: Floats) -> tuple[Floats, Floats]:
    """The complementary distribution: times in order, and the share of samples that are slower than each.

    The slowest sample has share 0, which a logarithm cannot show: it is drawn at half a sample.
    """
    ordered = np.sort(samples[np.isfinite(samples)])
    n = len(ordered)
    if n == 0:
        return ordered, ordered
    share = 1 - np.arange(1, n + 1) / n
    share[-1] = 0.5 / n
    if n <= MAX_POINTS:
        return ordered, share
    # dense in both ends' ranks: the body evenly, the tail by its logarithm
    body = np.linspace(0, n - 1, MAX_POINTS // 2)
    tail = n - np.geomspace(1, n, MAX_POINTS // 2)
    keep = np.unique(np.clip(np.concatenate([body, tail]), 0, n - 1).astype(int))
    return ordered[keep], share[keep]


def in_flight(send: Floats, close: Floats) -> tuple[Floats, Floats]:
    """Requests sent and not over, as steps: the time of each change and the number from then on."""
    sent = np.isfinite(send)
    closed = close[sent & np.isfinite(close)]
    when = np.concatenate([send[sent], closed])
    change = np.concatenate([np.ones(int(sent.sum())), -np.ones(len(closed))])
    order = np.lexsort((change, when))
    when, level = when[order], np.cumsum(change[order])
    if len(when) > 2 * MAX_POINTS:
        keep = np.linspace(0, len(when) - 1, 2 * MAX_POINTS).astype(int)
        return when[keep], level[keep]
    return when, level


def bins(span_s: float, target: int = 40) -> Floats:
    """Edges of even bins over `span_s`, of a width people count in."""
    wanted = max(span_s, 1e-3) / target
    size = 10 ** np.floor(np.log10(wanted))
    width = next(step * size for step in (1, 2, 5, 10) if step * size >= wanted * 0.999)
    edges: Floats = np.arange(0, span_s + width, width)
    return edges


def rate_in(edges: Floats, when: Floats) -> Floats:
    """Events per second in each bin."""
    counted: Floats = np.histogram(when[np.isfinite(when)], edges)[0] / np.diff(edges)
    return counted


def percentile_in(edges: Floats, when: Floats, values: Floats, q: float, at_least: int = 5) -> Floats:
    """The q-quantile of the values whose time lies in each bin; nan for bins of fewer than `at_least`."""
    there = np.isfinite(when) & np.isfinite(values)
    when, values = when[there], values[there]
    place = np.digitize(when, edges) - 1
    found = np.full(len(edges) - 1, np.nan)
    for i in range(len(found)):
        inside = values[place == i]
        if len(inside) >= at_least:
            found[i] = np.quantile(inside, q, method="inverted_cdf")
    return found


def thinned(num: int, keep: int = MAX_DOTS) -> NDArray[np.int_]:
    """Indices of every k-th of `num`, at most `keep` of them."""
    return np.arange(0, num, max(1, -(-num // keep)))
