"""Parts of the load side by side: attainment of each class, tenant, stream or bucket, and a map over lengths."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from paceline.contracts.metrics import GroupMetrics
from paceline.lab.report.charts.base import category_axis, plain_text, share_axis
from paceline.lab.report.page import Cell, Figure, Row, Table
from paceline.lab.report.words import count, interval_of, number, share, value_of

KINDS = {"class": "class", "tenant": "tenant", "stream": "stream", "bucket": "length", "turn": "turn"}


def attainment_chart(groups: Sequence[GroupMetrics]) -> Figure | None:
    """A dot and its interval for each group of every kind. None when there is nothing to set side by side."""
    kinds = distinct_kinds(groups)
    shown = [g for g in groups if g.kind in kinds and g.kind != "bucket" and g.attainment.value is not None]
    if len(shown) < 2:
        return None
    names = [_label(group) for group in shown]
    values = [g.attainment.value or 0.0 for g in shown]
    low = [_or(g.attainment.lo, v) for g, v in zip(shown, values, strict=True)]
    high = [_or(g.attainment.hi, v) for g, v in zip(shown, values, strict=True)]
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "markers", "x": values, "y": names, "name": "attainment",
        "marker": {"color": "@a", "size": 9},
        "error_x": {
            "type": "data", "symmetric": False, "color": "@a", "thickness": 2, "width": 0,
            "array": [h - v for h, v in zip(high, values, strict=True)],
            "arrayminus": [v - b for b, v in zip(low, values, strict=True)],
        },
        "hovertemplate": "%{y}: %{x:.2%}<extra></extra>",
    }  # fmt: skip
    left = math.floor(max(0.0, min(low) - 0.01) * 20) / 20
    layout = {
        "xaxis": share_axis("share of requests that were good", left),
        "yaxis": category_axis(autorange="reversed", showgrid=True),
    }
    rows = tuple(
        (_label(g), count(g.num_requests), value_of(g.attainment, "share"), interval_of(g.attainment, "share"))
        for g in shown
    )
    table = Table(("group", "requests", "attainment", "95 % interval"), rows)
    return Figure(
        "attainment", "Attainment by group", [trace], layout, table,
        "Bars are 95 % intervals; groups whose bars overlap widely are not told apart.",
        height=max(220, 80 + 26 * len(shown)),
    )  # fmt: skip


def distinct_kinds(groups: Sequence[GroupMetrics]) -> list[str]:
    """Kinds of groups, without those that part the load as an earlier kind does: one stream for each class, say."""
    parted: dict[str, tuple[object, ...]] = {}
    for kind in KINDS:
        parts = tuple(sorted((g.num_requests, g.output_tokens, g.input_tokens) for g in groups if g.kind == kind))
        if parts and parts not in parted.values():
            parted[kind] = parts
    return list(parted)


def length_map(groups: Sequence[GroupMetrics]) -> Figure | None:
    """Attainment by asked input and output length. None with fewer than two buckets."""
    cells: dict[tuple[str, str], GroupMetrics] = {}
    for group in groups:
        found = _BUCKET.fullmatch(group.name) if group.kind == "bucket" else None
        if found and group.attainment.value is not None:
            cells[found[1], found[2]] = group
    if len(cells) < 2:
        return None
    inputs, outputs = (sorted({key[i] for key in cells}, key=_lower) for i in (0, 1))
    grid = [[cells.get((a, b)) for a in inputs] for b in outputs]
    trace: dict[str, Any] = {
        "type": "heatmap", "x": inputs, "y": outputs, "xgap": 3, "ygap": 3, "zmin": 0, "zmax": 1, "showscale": False,
        "z": [[None if g is None else g.attainment.value for g in row] for row in grid],
        "text": [["" if g is None else _cell_words(g) for g in row] for row in grid],
        "texttemplate": "%{text}", "colorscale": [[0, "@b"], [0.5, "@f"], [1, "@soft"]], "hoverongaps": False,
        "hovertemplate": "%{x} tokens in, %{y} tokens out: %{z:.1%} good<extra></extra>",
    }  # fmt: skip
    layout = {
        "xaxis": category_axis(title={"text": "tokens in, as asked"}, categoryorder="array", categoryarray=inputs),
        "yaxis": category_axis(title={"text": "tokens out, as asked"}, categoryorder="array", categoryarray=outputs),
    }
    rows = tuple(
        (f"in {a}, out {b}", count(g.num_requests), value_of(g.attainment, "share"), interval_of(g.attainment, "share"))
        for (a, b), g in cells.items()
    )
    table = Table(("length", "requests", "attainment", "95 % interval"), rows)
    return Figure(
        "length-map", "Attainment by length", [trace], layout, table,
        "Share of good requests in each bucket, and how many it holds.", height=max(220, 90 + 56 * len(outputs)),
    )  # fmt: skip


def _cell_words(group: GroupMetrics) -> str:
    return f"{share(group.attainment.value)}<br>n {count(group.num_requests)}"


_BUCKET = re.compile(r"in (\S+), out (\S+)")


def _lower(bucket: str) -> int:
    digits = re.match(r"\d+", bucket)
    return int(digits[0]) if digits else -1


def group_table(groups: Sequence[GroupMetrics], kind: str, caption: str) -> Table | None:
    """One row for each group of a kind, with goodput, attainment and latencies."""
    shown = [g for g in groups if g.kind == kind]
    if not shown:
        return None
    columns = (
        KINDS.get(kind, kind), "requests", "goodput (req/s)", "attainment", "TTFT p50", "TTFT p95", "TTFT p99",
        "TPOT p50", "TPOT p95", "E2E p95", "output tokens", "cached",
    )  # fmt: skip
    rows: tuple[Row, ...] = tuple(
        (
            Cell(group.name or "–"),
            count(group.num_requests),
            Cell(value_of(group.goodput_rps, ""), interval_of(group.goodput_rps, "")),
            Cell(value_of(group.attainment, "share"), interval_of(group.attainment, "share")),
            *(_latency(group, name, mark) for name, mark in _MARKS),
            count(group.output_tokens),
            share(group.cached_tokens / group.input_tokens) if group.input_tokens else number(None),
        )
        for group in shown
    )
    return Table(columns, rows, caption=caption)


_MARKS = (("ttft", "p50"), ("ttft", "p95"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p95"), ("e2e", "p95"))


def _latency(group: GroupMetrics, name: str, mark: str) -> Cell:
    latency = group.latency.get(name)
    if latency is None:
        return Cell("–", tone="muted")
    estimate = getattr(latency, mark)
    tone = "" if estimate.value is not None else "muted"
    return Cell(value_of(estimate, "s"), interval_of(estimate, "s"), "muted" if tone else "")


def _label(group: GroupMetrics) -> str:
    return plain_text(f"{KINDS[group.kind]} {group.name}" if group.name else KINDS[group.kind])


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
