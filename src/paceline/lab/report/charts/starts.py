"""Cold and warm starts by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.lab.report.charts.base import SERIES, category_axis, plain_text
from paceline.lab.report.page import Cell, Figure, Row, Table
from paceline.lab.report.words import seconds

if TYPE_CHECKING:
    from paceline.lab.experiment.results import StartResult

_MARKS = (
    ("port_open_s", "until the port is open"),
    ("ready_s", "until it is ready"),
    ("first_token_s", "until the first token"),
)


def start_chart(starts: Sequence[tuple[str, StartResult]]) -> tuple[Figure | None, Table | None]:
    """One bar for each (node, start), cut where the port opens, the server is ready and the first token comes."""
    if not starts:
        return None, None
    names = [plain_text(f"{i + 1}  {node} {start.kind}") for i, (node, start) in enumerate(starts)]
    traces: list[dict[str, Any]] = []
    for i, (_, label) in enumerate(_MARKS):
        spans = [_span(start, i) for _, start in starts]
        if any(spans):
            traces.append(
                {
                    "type": "bar", "orientation": "h", "name": label, "y": names, "x": spans,
                    "marker": {"color": SERIES[i]}, "hovertemplate": f"%{{y}}: {label} %{{x:.3g}} s<extra></extra>",
                }
            )  # fmt: skip
    rows: tuple[Row, ...] = tuple(
        (
            Cell(f"{node} {start.kind}", start.dropped),
            seconds(start.port_open_s), seconds(start.listed_s), seconds(start.ready_s), seconds(start.first_token_s),
            ", ".join(f"{name} {seconds(took)}" for name, took in start.phases.items()) or "–",
        )
        for node, start in starts
    )  # fmt: skip
    table = Table(
        ("start", "port open", "model listed", "ready", "first token", "phases, as the server tells them"), rows
    )
    if not traces:
        return None, table
    layout = {
        "barmode": "stack", "bargap": 0.35, "yaxis": category_axis(autorange="reversed"),
        "xaxis": {"title": {"text": "time since the process was made (s)"}, "rangemode": "tozero"},
    }  # fmt: skip
    return Figure(
        "start-times", "Starts of the servers", traces, layout, table, height=80 + 34 * len(starts), wide=True
    ), table


def _span(start: StartResult, i: int) -> float:
    """From the mark before to this one; 0 where either is not known."""
    value = getattr(start, _MARKS[i][0])
    before = [known for mark, _ in _MARKS[:i] if (known := getattr(start, mark)) is not None]
    return 0.0 if value is None else max(0.0, value - max(before, default=0.0))
