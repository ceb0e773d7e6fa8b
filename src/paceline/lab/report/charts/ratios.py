"""Ratios of two runs around 1: right of the line is more, with intervals, one row for each figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.contracts.artefact import Estimate
from paceline.lab.report.charts.base import category_axis, log_ticks, plain_text
from paceline.lab.report.page import Cell, Figure, Table
from paceline.lab.report.words import interval_of, ratio


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One figure of both runs; `before` and `after` are formatted already."""

    name: str
    before: str
    after: str
    ratio: Estimate
    more_is_better: bool
    tone: Literal["", "good", "bad"] = ""  # better, worse, or not told apart


def ratio_chart(rows: Sequence[RatioRow], margin: float = 0.0, lead: str = "") -> Figure | None:
    shown = [row for row in rows if row.ratio.value is not None and row.ratio.value > 0]
    if not shown:
        return None
    # an interval may begin at 0, which a log axis does not have: it is drawn to a tenth of its value
    low = [max(_or(row.ratio.lo, row.ratio.value), 0.1 * _or(row.ratio.value, None)) for row in shown]
    high = [_or(row.ratio.hi, row.ratio.value) for row in shown]
    traces: list[dict[str, Any]] = []
    for tone, name, colour, symbol in (
        ("good", "better", "@c", "circle"),
        ("bad", "worse", "@b", "diamond"),
        ("", "not told apart", "@f", "circle-open"),
    ):
        here = [i for i, row in enumerate(shown) if row.tone == tone]
        if not here:
            continue
        values = [shown[i].ratio.value or 1.0 for i in here]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "x": values,
                "y": [plain_text(shown[i].name) for i in here],
                "marker": {"color": colour, "size": 10, "symbol": symbol, "line": {"color": colour, "width": 2}},
                "error_x": {
                    "type": "data", "symmetric": False, "color": colour, "thickness": 2, "width": 0,
                    "array": [high[i] - v for i, v in zip(here, values, strict=True)],
                    "arrayminus": [v - low[i] for i, v in zip(here, values, strict=True)],
                },
                "hovertemplate": "%{y}: %{x:.3f} ×<extra></extra>",
            }
        )  # fmt: skip
    left, right = min(0.9, *low) / 1.03, max(1.1, *high) * 1.03
    ticks, labels = _ticks(left, right)
    shapes: list[dict[str, Any]] = [
        {
            "type": "line",
            "x0": 1,
            "x1": 1,
            "y0": 0,
            "y1": 1,
            "xref": "x",
            "yref": "paper",
            "line": {"color": "@ink", "width": 1},
        }
    ]
    if margin:
        shapes.append(
            {"type": "rect", "x0": 1 - margin, "x1": 1 + margin, "y0": 0, "y1": 1, "xref": "x", "yref": "paper",
             "layer": "below", "line": {"width": 0}, "fillcolor": "@shade/0.7"}
        )  # fmt: skip
    layout = {
        "xaxis": {
            "title": {"text": "B over A (1 = no difference)"}, "type": "log", "tickvals": ticks, "ticktext": labels,
            "range": [math.log10(left), math.log10(right)],
        },
        "yaxis": category_axis(
            categoryorder="array", categoryarray=[plain_text(row.name) for row in shown],
            range=[len(shown) - 0.5, -0.5],
        ),
        "shapes": shapes,
    }  # fmt: skip
    table = ratio_table(rows)
    return Figure("ratios", "B over A", traces, layout, table, lead, height=96 + 30 * len(shown), wide=True)


def ratio_table(rows: Sequence[RatioRow]) -> Table:
    body = tuple(
        (row.name, row.before, row.after, Cell(ratio(row.ratio.value), interval_of(row.ratio, "ratio"), row.tone))
        for row in rows
    )
    return Table(("figure", "A", "B", "B over A"), body)


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    if high / low > 8:
        ticks, _ = log_ticks(low, high, 7)
        return ticks, [f"{tick:g}" for tick in ticks]
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / s <= 8)
    first = math.ceil(low / step)
    found = [round(step * k, 6) for k in range(first, math.floor(high / step) + 1)]
    return found, [f"{tick:g}" for tick in found]


def _or(value: float | None, other: float | None) -> float:
    return (other or 1.0) if value is None else value
