"""The throughput-latency curve: goodput and attainment against the offered rate, with the bracket of the highest rate
that holds the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.contracts.artefact import Estimate
from paceline.lab.report.charts.base import DASHES, SERIES, limit_line, limit_word, plain_text, share_axis
from paceline.lab.report.page import Figure, Table
from paceline.lab.report.words import count, interval_of, number, share, value_of


@dataclass(frozen=True, slots=True)
class Level:
    rate_rps: float
    attainment: Estimate
    goodput_rps: Estimate
    num_requests: int = 0
    num_points: int = 1


@dataclass(frozen=True, slots=True)
class Curve:
    """What one configuration did at several rates. Bracket: highest rate that held, lowest above it that did not."""

    name: str
    levels: tuple[Level, ...]
    share: float = 0.95
    highest_pass_rps: float | None = None
    lowest_fail_rps: float | None = None


def rate_charts(curves: Sequence[Curve]) -> tuple[Figure, ...]:
    """Goodput and attainment against the offered rate; () without a curve of at least two rates."""
    curves = [curve for curve in curves if len(curve.levels) > 1]
    if not curves:
        return ()
    high = max(level.rate_rps for curve in curves for level in curve.levels) * 1.04
    table = _table(curves)
    goodput: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "name": "everything good", "x": [0, high], "y": [0, high],
            "line": {"color": "@edge", "width": 1, "dash": "dot"}, "hoverinfo": "skip",
        }
    ]  # fmt: skip
    attained: list[dict[str, Any]] = []
    for i, curve in enumerate(curves):
        goodput += _band(curve, i, "goodput_rps", "%{y:.3g} good req/s at %{x:.3g} offered")
        attained += _band(curve, i, "attainment", "%{y:.1%} good at %{x:.3g} req/s offered")
    x_axis = {"title": {"text": "offered rate (req/s)"}, "range": [0, high]}
    wanted = max(curve.share for curve in curves)
    shapes = [limit_line(wanted, vertical=False)]
    shapes += [box for i, curve in enumerate(curves) if (box := _bracket(curve, i)) is not None]
    return (
        Figure(
            "goodput-rate", "Goodput against the offered rate", goodput,
            {"xaxis": x_axis, "yaxis": {"title": {"text": "goodput (req/s)"}, "rangemode": "tozero"}},
            table, "Past its knee a server loses good requests although it is busier. Bars are 95 % intervals.",
        ),
        Figure(
            "attainment-rate", "Attainment against the offered rate", attained,
            {
                "xaxis": x_axis, "shapes": shapes,
                "yaxis": share_axis("share of requests that were good"),
                "annotations": [limit_word(wanted, f"SLO asks for {share(wanted)}", vertical=False)],
            },
            table, _bracket_words(curves),
        ),
    )  # fmt: skip


def _band(curve: Curve, i: int, what: str, hover: str) -> list[dict[str, Any]]:
    levels = [level for level in curve.levels if getattr(level, what).value is not None]
    values = [getattr(level, what) for level in levels]
    colour = SERIES[i % len(SERIES)]
    return [
        {
            "type": "scatter", "mode": "lines+markers", "name": plain_text(curve.name),
            "x": [level.rate_rps for level in levels], "y": [v.value for v in values],
            "line": {"color": colour, "width": 2, "dash": DASHES[i % len(DASHES)]},
            "marker": {"size": 7, "color": colour},
            "error_y": {
                "type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 3,
                "array": [(v.value if v.hi is None else v.hi) - v.value for v in values],
                "arrayminus": [v.value - (v.value if v.lo is None else v.lo) for v in values],
            },
            "hovertemplate": f"{plain_text(curve.name)}: {hover}<extra></extra>",
        }
    ]  # fmt: skip


def _bracket(curve: Curve, i: int) -> dict[str, Any] | None:
    if curve.highest_pass_rps is None or curve.lowest_fail_rps is None:
        return None
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": curve.highest_pass_rps, "x1": curve.lowest_fail_rps,
        "y0": 0, "y1": 1, "layer": "below", "line": {"width": 0}, "fillcolor": f"{SERIES[i % len(SERIES)]}/0.13",
    }  # fmt: skip


def _bracket_words(curves: Sequence[Curve]) -> str:
    found = [curve for curve in curves if curve.highest_pass_rps is not None]
    words = [
        f"{curve.name} holds {number(curve.highest_pass_rps)} req/s"
        + (f" and not {number(curve.lowest_fail_rps)}" if curve.lowest_fail_rps is not None else "")
        for curve in found
    ]
    shade = " The highest rate lies in the shaded stretch." if any(c.lowest_fail_rps for c in found) else ""
    return "; ".join(words) + "." + shade if words else "No rate held the SLO."


def _table(curves: Sequence[Curve]) -> Table:
    rows = tuple(
        (
            curve.name, number(level.rate_rps), count(level.num_points), count(level.num_requests),
            value_of(level.attainment, "share"), interval_of(level.attainment, "share"),
            value_of(level.goodput_rps, ""), interval_of(level.goodput_rps, ""),
        )
        for curve in curves
        for level in curve.levels
    )  # fmt: skip
    columns = (
        "configuration",
        "offered (req/s)",
        "points",
        "requests",
        "attainment",
        "interval",
        "goodput (req/s)",
        "interval",
    )
    return Table(columns, rows)
