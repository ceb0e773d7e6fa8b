"""How the requests of the window ended: one bar, good on the left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.contracts.metrics import GroupMetrics
from paceline.lab.report.charts.base import share_axis
from paceline.lab.report.page import Figure, Table
from paceline.lab.report.words import count, outcome, share

_COLOURS = {"http_error": "@bad", "stream_error": "@d", "timeout": "@e", "rejected": "@b", "truncated": "@soft"}


def outcome_chart(whole: GroupMetrics) -> Figure | None:
    """Good, well ended but late, and each way of not ending well. Shares are of all planned requests of the window."""
    total = whole.num_requests
    if total == 0:
        return None
    ok = whole.outcomes.get("ok", 0)
    good = num_good(whole)
    parts: list[tuple[str, int, str]] = []
    if good is not None:
        parts += [
            ("good: ended well within the SLO", good, "@a"),
            ("ended well, but missed the SLO", ok - good, "@soft"),
        ]
    else:
        parts.append(("ended well", ok, "@a"))
    for name, number in sorted(whole.outcomes.items(), key=lambda item: -item[1]):
        if name != "ok":
            parts.append((outcome(name), number, _COLOURS.get(name, "@f")))
    parts = [part for part in parts if part[1] > 0]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar", "orientation": "h", "name": label, "x": [number / total], "y": [""],
            "marker": {"color": colour, "line": {"color": "@paper", "width": 1}},
            "hovertemplate": f"{label}: {number:,} of {total:,} (%{{x:.2%}})<extra></extra>",
        }
        for label, number, colour in parts
    ]  # fmt: skip
    layout = {
        "barmode": "stack", "bargap": 0.1, "margin": {"l": 16, "r": 24, "t": 8, "b": 8},
        "xaxis": {**share_axis("share of the window's requests"), "range": [0, 1.001]},
        "yaxis": {"showline": False, "ticks": "", "showticklabels": False, "showgrid": False},
    }  # fmt: skip
    rows = tuple((label, count(number), share(number / total)) for label, number, _ in parts)
    return Figure(
        "outcomes", "How requests ended", traces, layout, Table(("outcome", "requests", "share"), rows),
        _missed_words(whole.missed, total), height=118, wide=True,
    )  # fmt: skip


def num_good(group: GroupMetrics) -> int | None:
    """Good requests, from the share among those that count; None where no SLO was asked for."""
    attained = group.attainment
    return None if attained.value is None else round(attained.value * attained.n)


def _missed_words(missed: Mapping[str, int], total: int) -> str:
    terms = {"outcome": "did not end well", "ttft": "missed TTFT", "tpot": "missed TPOT", "e2e": "missed E2E"}
    parts = [
        f"{count(number)} {terms.get(term, f'missed {term}')} ({share(number / total)})"
        for term, number in sorted(missed.items(), key=lambda item: -item[1])
        if number
    ]
    return "Of all requests, " + ", ".join(parts) + ". One request may miss several terms." if parts else ""
