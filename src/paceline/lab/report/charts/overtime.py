"""What happened when: latencies, requests in flight, arrivals and endings, over the whole load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from paceline.contracts.artefact import Window
from paceline.lab.report.charts.base import best_unit, limit_line, limit_word, shaded, time_axis, y_axis
from paceline.lab.report.curves import Floats, bins, in_flight, percentile_in, rate_in, thinned
from paceline.lab.report.page import Figure, Table
from paceline.lab.report.requests import Requests
from paceline.lab.report.words import number


def latency_over_time(
    id: str,
    title: str,
    requests: Requests,
    values: Floats,
    window: Window,
    limits: Sequence[tuple[str, float]] = (),
    lead: str = "",
) -> Figure | None:
    """One dot for each request at its planned time, with the median and p95 of each bin. `values` in seconds."""
    there = np.isfinite(values) & np.isfinite(requests.plan)
    if not there.any():
        return None
    when, values = requests.plan[there], values[there]
    span = max(float(when.max()), window.end_ns / 1e9)
    factor, unit = best_unit([float(np.quantile(values, 0.98))])
    edges = bins(span, 30)
    middle = (edges[:-1] + edges[1:]) / 2
    p50, p95 = (percentile_in(edges, when, values, q, least) * factor for q, least in ((0.5, 5), (0.95, 20)))
    order = np.argsort(when)
    dots = order[thinned(len(order))]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "markers", "name": "a request", "x": when[dots], "y": values[dots] * factor,
            "marker": {"color": "@a/0.35", "size": 4, "line": {"width": 0}}, "meta": {"swatch": "@a"},
            "hovertemplate": f"%{{y:.4g}} {unit} at %{{x:.1f}} s<extra></extra>",
        },
        _line("median", middle, p50, "@a", unit),
        _line("p95", middle, p95, "@b", unit, dash="dash"),
    ]  # fmt: skip
    top = float(np.quantile(values, 0.995)) * factor
    layout: dict[str, Any] = {"xaxis": time_axis(span), "shapes": [shaded(window)]}
    near = [(words, limit * factor) for words, limit in limits if limit * factor < 2.5 * top]
    if near:
        top = max(top, *(at for _, at in near))
        layout["shapes"] += [limit_line(at, vertical=False) for _, at in near]
        layout["annotations"] = [limit_word(at, words, vertical=False) for words, at in near]
    layout["yaxis"] = y_axis(f"{title.split()[0]} ({unit})", range=[0, top * 1.12])
    rows = [
        (number(a), number(b), f"{int(((when >= a) & (when < b)).sum())}", number(m), number(t))
        for a, b, m, t in zip(edges[:-1], edges[1:], p50, p95, strict=True)
    ]
    table = Table(("from (s)", "to (s)", "n", f"median ({unit})", f"p95 ({unit})"), tuple(rows), num_words=0)
    skipped = f" Every {-(-len(order) // len(dots))}th request is drawn." if len(dots) < len(order) else ""
    return Figure(id, title, traces, layout, table, lead + skipped)


def load_over_time(requests: Requests, window: Window) -> tuple[Figure, ...]:
    """Requests in flight, and the rates at which requests were due and ended."""
    if not np.isfinite(requests.send).any():
        return ()
    when, level = in_flight(requests.send, requests.close)
    span = max(float(np.nanmax(np.concatenate([when, requests.plan]))), window.end_ns / 1e9)
    edges = bins(span, 40)
    edges = edges[edges <= max(span, edges[1])]  # a last step that is cut short would look like a fall
    middle, width = (edges[:-1] + edges[1:]) / 2, float(edges[1] - edges[0])
    due, ended = rate_in(edges, requests.plan), rate_in(edges, requests.close[requests.ok])
    flight = Figure(
        "in-flight", "Requests in flight",
        [
            {
                "type": "scatter", "mode": "lines", "name": "in flight", "x": when, "y": level, "fill": "tozeroy",
                "line": {"color": "@a", "width": 1.5, "shape": "hv"}, "fillcolor": "@a/0.15",
                "hovertemplate": "%{y} in flight at %{x:.1f} s<extra></extra>",
            }
        ],
        {"xaxis": time_axis(span), "yaxis": y_axis("requests sent and not over"), "shapes": [shaded(window)]},
        _flight_table(edges, when, level),
        "A level that keeps rising means that the server does not keep up. The measured window is shaded.",
    )  # fmt: skip
    rates = Figure(
        "rates", "Arrivals and completions",
        [
            _line("due by the schedule", middle, due, "@f", "req/s", dash="dot", shape="hvh"),
            _line("ended well", middle, ended, "@a", "req/s", shape="hvh"),
        ],
        {"xaxis": time_axis(span), "yaxis": y_axis("requests per second"), "shapes": [shaded(window)]},
        Table(
            ("from (s)", "to (s)", "due (req/s)", "ended well (req/s)"),
            tuple((number(a), number(b), number(d), number(e))
                  for a, b, d, e in zip(edges[:-1], edges[1:], due, ended, strict=True)),
            num_words=0,
        ),
        f"Counted in steps of {width:g} s.",
    )  # fmt: skip
    return flight, rates


def _flight_table(edges: Floats, when: Floats, level: Floats) -> Table:
    rows = []
    for a, b in pairwise(edges):
        before = np.searchsorted(when, a, side="right") - 1
        inside = level[(when > a) & (when < b)]
        seen = np.append(inside, level[before] if before >= 0 else 0)
        rows.append((number(a), number(b), f"{seen.min():.0f}", f"{seen.max():.0f}"))
    return Table(("from (s)", "to (s)", "fewest", "most"), tuple(rows), num_words=0)


def _line(
    name: str, x: Floats, y: Floats, colour: str, unit: str, *, dash: str = "solid", shape: str = "linear"
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y,
        "line": {"color": colour, "width": 2, "dash": dash, "shape": shape},
        "hovertemplate": f"{name}: %{{y:.4g}} {unit} at %{{x:.1f}} s<extra></extra>",
    }  # fmt: skip
