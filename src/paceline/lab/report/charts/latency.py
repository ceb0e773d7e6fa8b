"""Latency distributions: the share of requests slower than a time, with a logarithmic tail or plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.lab.report.charts.base import best_unit, limit_line, limit_word, log_ticks, plain_text
from paceline.lab.report.curves import Floats, slower_than
from paceline.lab.report.page import Figure, Table, View
from paceline.lab.report.words import NOTHING, count, seconds

_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    samples: Floats  # seconds; nan are left out, and counted in the table
    colour: str = "@a"
    dash: str = "solid"


def latency_chart(
    id: str, title: str, what: str, series: Sequence[Series], limits: Sequence[tuple[str, float]] = (), lead: str = ""
) -> Figure | None:
    """`limits` are (words, seconds). None when no series has a sample."""
    there = [one for one in series if np.isfinite(one.samples).any()]
    if not there:
        return None
    finite = [one.samples[np.isfinite(one.samples)] for one in there]
    factor, unit = best_unit([float(np.quantile(samples, 0.99)) for samples in finite])
    traces = []
    for one in there:
        x, y = slower_than(one.samples)
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": one.name, "x": x * factor, "y": y,
                "line": {"color": one.colour, "width": 2, "dash": one.dash, "shape": "hv"},
                "hovertemplate": f"{plain_text(one.name)}: %{{y:.2%}} are slower than %{{x:.4g}} {unit}<extra></extra>",
            }
        )  # fmt: skip
    low = min(float(samples[samples > 0].min()) if (samples > 0).any() else 1e-3 for samples in finite) * factor
    high = max(low, max(float(samples.max()) for samples in finite) * factor)  # all 0: a log axis still has a width
    shown = [(words, value * factor) for words, value in limits if low / 3 < value * factor < high * 3]
    low, high = min([low, *(v for _, v in shown)]) / 1.08, max([high, *(v for _, v in shown)]) * 1.15
    ticks, labels = log_ticks(low, high)
    smallest = max(1e-4, 0.4 / max(len(samples) for samples in finite))
    shares, share_labels = _share_ticks(smallest)
    axis_title = {"title": {"text": f"{what} ({unit})"}}
    log = {
        "xaxis.type": "log", "xaxis.range": np.log10([low, high]), "xaxis.tickvals": ticks, "xaxis.ticktext": labels,
        "yaxis.type": "log", "yaxis.range": np.log10([smallest, 1.1]), "yaxis.tickvals": shares,
        "yaxis.ticktext": share_labels,
        "annotations": [
            limit_word(v, words, vertical=True, log=True, row=i, left=v > (low * high) ** 0.5)
            for i, (words, v) in enumerate(shown)
        ],
    }  # fmt: skip
    top = max([float(np.quantile(samples, 0.99)) * factor for samples in finite] + [v for _, v in shown]) * 1.15 or high
    plain = {
        "xaxis.type": "linear", "xaxis.range": [0, top], "yaxis.type": "linear", "yaxis.range": [0, 1.02],
        "yaxis.tickvals": [0, 0.25, 0.5, 0.75, 1], "yaxis.ticktext": ["0 %", "25 %", "50 %", "75 %", "100 %"],
        "annotations": [
            limit_word(v, words, vertical=True, row=i, left=v > top / 2) for i, (words, v) in enumerate(shown)
        ],
    }  # fmt: skip
    layout = {
        "xaxis": axis_title,
        "yaxis": {"title": {"text": "share of requests slower"}},
        "shapes": [limit_line(v, vertical=True) for _, v in shown],
    }
    views = (View("Log tail", log), View("Linear", plain))
    return Figure(id, title, traces, layout, _table(what, series), lead, views)


def _share_ticks(smallest: float) -> tuple[list[float], list[str]]:
    every = [
        (1, "100 %"),
        (0.5, "50 %"),
        (0.1, "10 %"),
        (0.05, "5 %"),
        (0.01, "1 %"),
        (0.001, "0.1 %"),
        (1e-4, "0.01 %"),
    ]
    shown = [(share, label) for share, label in every if share >= smallest]
    return [share for share, _ in shown], [label for _, label in shown]


def _table(what: str, series: Sequence[Series]) -> Table:
    columns = ("series", "n", "without", *(f"p{q * 100:g}" for q in _QUANTILES), "max")
    rows = []
    for one in series:
        samples = one.samples[np.isfinite(one.samples)]
        n = len(samples)
        marks = [
            seconds(float(np.quantile(samples, q, method="inverted_cdf"))) if n * (1 - q) >= 1 else NOTHING
            for q in _QUANTILES
        ]
        largest = seconds(float(samples.max())) if n else NOTHING
        rows.append((one.name, count(n), count(len(one.samples) - n), *marks, largest))
    return Table(columns, tuple(rows), caption=f"{what}: points of the curves, without intervals")
