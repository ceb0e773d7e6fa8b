"""What charts share: colours by name, the shaded window, lines for limits, ticks of logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paceline.contracts.artefact import Window
from paceline.lab.report.page import Json

SERIES = ("@a", "@b", "@c", "@d", "@e", "@f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def time_axis(span_s: float | None = None) -> Json:
    axis: Json = {"title": {"text": "time since the load began (s)"}, "showgrid": False}
    if span_s:
        axis["range"] = [0, span_s]
    return axis


def y_axis(title: str, **more: Any) -> Json:
    return {"title": {"text": title}, "rangemode": "tozero", **more}


def shaded(window: Window) -> Json:
    """The measured window, behind everything."""
    edges = {"x0": window.start_ns / 1e9, "x1": window.end_ns / 1e9, "y0": 0, "y1": 1}
    return {
        "type": "rect", "xref": "x", "yref": "paper", "layer": "below", "fillcolor": "@shade/0.55",
        "line": {"width": 0}, **edges,
    }  # fmt: skip


def limit_line(value: float, *, vertical: bool, colour: str = "@b") -> Json:
    place: Json = (
        {"x0": value, "x1": value, "y0": 0, "y1": 1, "xref": "x", "yref": "paper"}
        if vertical
        else {"y0": value, "y1": value, "x0": 0, "x1": 1, "yref": "y", "xref": "paper"}
    )
    return {"type": "line", "line": {"color": colour, "width": 1.5, "dash": "dot"}, "layer": "above", **place}


def limit_word(value: float, text: str, *, vertical: bool, log: bool = False, left: bool = False, row: int = 0) -> Json:
    """The words at a limit's line, inside the plot. Of a vertical one: at its top, on its `left` or right, in rows."""
    at = math.log10(value) if log else value
    common: Json = {"text": text, "showarrow": False, "font": {"size": 11, "color": "@b"}, "bgcolor": "@paper/0.75"}
    if vertical:
        side = {"xanchor": "right", "xshift": -3} if left else {"xanchor": "left", "xshift": 3}
        return {**common, **side, "x": at, "y": 1, "xref": "x", "yref": "paper", "yanchor": "top", "yshift": -15 * row}
    return {
        **common, "x": 1, "y": at, "xref": "paper", "yref": "y", "xanchor": "right", "yanchor": "bottom", "yshift": 1,
    }  # fmt: skip


def category_axis(**more: Any) -> Json:
    """Names at the left, a little away from what they name."""
    return {
        "type": "category",
        "showline": False,
        "dtick": 1,
        "ticklen": 6,
        "tickcolor": "@paper",
        "showgrid": False,
        **more,
    }


def share_axis(title: str, low: float = 0.0, high: float = 1.0) -> Json:
    """Shares as per cent."""
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if (high - low) / s <= 6 or s == 0.25)
    ticks = [round(k * step, 4) for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    room = (high - low) * 0.02
    return {
        "title": {"text": title}, "range": [low - (room if low > 0 else 0), high + room], "tickvals": ticks,
        "ticktext": [f"{tick:.0%}".replace("%", " %") for tick in ticks],
    }  # fmt: skip


def log_ticks(low: float, high: float, most: int = 6) -> tuple[list[float], list[str]]:
    """Round values between the two, evenly on a logarithm, at most `most`."""
    if not 0 < low < high:
        return [], []
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [s * 10.0**e for e in exponents for s in steps if low * 0.999 <= s * 10.0**e <= high * 1.001]
        if len(ticks) <= most:
            break
    ticks = ticks[:: max(1, -(-len(ticks) // most))]
    return ticks, [f"{tick:,.6g}" for tick in ticks]


def best_unit(values: Sequence[float]) -> tuple[float, str]:
    """Factor and name of the unit in which times of this size are read: ms below a second or two."""
    finite = [value for value in values if math.isfinite(value)]
    return (1e3, "ms") if not finite or max(finite) < 2 else (1.0, "s")


def plain_text(text: str, most: int = 40) -> str:
    """Words from outside as plotly may draw them: it reads a little markup, and placeholders in hover texts."""
    text = text.replace("<", "‹").replace(">", "›").replace("&", "＆").replace("%{", "% {")
    return text if len(text) <= most else text[: most - 1] + "…"
