"""The ladder: the deciding figure of each configuration with its interval, in order, the gain of each step on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.contracts.artefact import Estimate
from paceline.lab.report.charts.base import category_axis, plain_text
from paceline.lab.report.page import Figure, Table
from paceline.lab.report.words import interval_of, number, ratio, value_of


@dataclass(frozen=True, slots=True)
class Step:
    """One configuration of a ladder. `gain` is over its parent; None for the base."""

    name: str
    estimate: Estimate
    gain: Estimate | None = None
    parent: str = ""
    best: bool = False


def ladder_chart(steps: Sequence[Step], what: str, unit: str, lead: str = "") -> Figure | None:
    """A bar for each step, its interval, and over it the ratio to its parent."""
    shown = [step for step in steps if step.estimate.value is not None]
    if not shown:
        return None
    values = [step.estimate.value or 0.0 for step in shown]
    low = [v if s.estimate.lo is None else s.estimate.lo for s, v in zip(shown, values, strict=True)]
    high = [v if s.estimate.hi is None else s.estimate.hi for s, v in zip(shown, values, strict=True)]
    names = [plain_text(f"{i}  {step.name}") for i, step in enumerate(steps) if step.estimate.value is not None]
    top = max(high) * 1.5 or 1.0  # room for the words at the longest bar, on a phone too
    trace: dict[str, Any] = {
        "type": "bar", "orientation": "h", "y": names, "x": values, "width": 0.58,
        "marker": {"color": ["@a/0.7" if step.best else "@soft" for step in shown]},
        "error_x": {
            "type": "data", "symmetric": False, "color": "@ink", "thickness": 1.5, "width": 4,
            "array": [h - v for h, v in zip(high, values, strict=True)],
            "arrayminus": [v - b for b, v in zip(low, values, strict=True)],
        },
        "hovertemplate": f"%{{y}}: %{{x:.4g}} {unit}<extra></extra>",
    }  # fmt: skip
    annotations = [
        {
            "x": h, "y": name, "xref": "x", "yref": "y", "xanchor": "left", "xshift": 10, "showarrow": False,
            "align": "left", "text": _words(step), "font": {"size": 12, "color": "@ink"},
        }
        for step, name, h in zip(shown, names, high, strict=True)
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": f"{what} ({unit})"}, "range": [0, top]},
        "yaxis": category_axis(autorange="reversed"),
        "annotations": annotations,
    }
    rows = tuple(
        (
            step.name, value_of(step.estimate, ""), interval_of(step.estimate, ""), step.parent or "–",
            ratio(step.gain.value) if step.gain else "–", interval_of(step.gain, "ratio") if step.gain else "",
        )
        for step in steps
    )  # fmt: skip
    table = Table(("configuration", f"{what} ({unit})", "95 % interval", "against", "ratio", "95 % interval"), rows)
    return Figure(
        "ladder",
        f"{what[0].upper()}{what[1:]} step by step",
        [trace],
        layout,
        table,
        lead,
        height=76 + 52 * len(shown),
        wide=True,
    )


def _words(step: Step) -> str:
    value = f"<b>{number(step.estimate.value)}</b>"
    return value if step.gain is None or step.gain.value is None else f"{value}  × {number(step.gain.value)}"
