"""The server's own account: batch, KV, prefix hits and tokens per second, from its scraped metrics.

A row is `{"t_ns": ..., "common": {...}}`, with the names of `lab.experiment.server_metrics.COMMON`; counters are
turned into rates here. A chart whose series the server does not offer is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.contracts.artefact import Window
from paceline.lab.report.charts.base import shaded, share_axis, time_axis, y_axis
from paceline.lab.report.curves import MAX_POINTS, Floats
from paceline.lab.report.page import Figure, Table
from paceline.lab.report.words import NOTHING, number, share

Rows = Sequence[Mapping[str, Any]]


def server_charts(rows: Rows, window: Window) -> tuple[Figure, ...]:
    """At most five figures; none when the server gave no metrics."""
    rows = [row for row in rows if row.get("common")]
    rows = rows[:: max(1, -(-len(rows) // MAX_POINTS))]
    if len(rows) < 2:
        return ()
    t = np.array([row["t_ns"] / 1e9 for row in rows])
    made = (
        _batch(t, rows, window), _kv(t, rows, window), _tokens(t, rows, window), _hits(t, rows, window),
        _replicas(t, rows, window),
    )  # fmt: skip
    return tuple(figure for figure in made if figure is not None)


def _batch(t: Floats, rows: Rows, window: Window) -> Figure | None:
    running, waiting = _gauge(rows, "num_running"), _gauge(rows, "num_waiting")
    if running is None:
        return None
    traces = [_area("running", t, running, "@a", "batch", "%{y:.0f} running at %{x:.1f} s")]
    columns, values = ["time (s)", "running"], [t, running]
    if waiting is not None:
        traces.append(_area("waiting", t, waiting, "@b", "batch", "%{y:.0f} waiting at %{x:.1f} s"))
        columns.append("waiting")
        values.append(waiting)
    layout = {"xaxis": time_axis(_end(t, window)), "yaxis": y_axis("sequences"), "shapes": [shaded(window)]}
    lead = "Sequences that have a place in the batch, and those in the queue for one, on top of each other."
    return Figure("batch", "Batch composition", traces, layout, _table(columns, values), lead)


def _kv(t: Floats, rows: Rows, window: Window) -> Figure | None:
    usage = _gauge(rows, "kv_usage")
    if usage is None:
        return None
    traces = [_line("KV in use", t, usage, "@a", "%{y:.1%} at %{x:.1f} s", fill=True)]
    lead = "Share of the KV blocks that requests hold. Near 100 %, requests wait for memory or are preempted."
    columns, values, formats = ["time (s)", "KV in use"], [t, usage], [number, share]
    preempted = _counter(rows, "num_preemptions")
    if preempted is not None:
        columns.append("preemptions so far")
        values.append(preempted)
        formats.append(number)
        total = int(preempted[-1])
        lead += f" {total:,} preemption{'s' if total != 1 else ''} during the load."
    layout = {
        "xaxis": time_axis(_end(t, window)),
        "yaxis": share_axis("share of KV blocks in use"),
        "shapes": [shaded(window)],
    }  # fmt: skip
    return Figure("kv", "KV occupancy", traces, layout, _table(columns, values, formats), lead)


def _tokens(t: Floats, rows: Rows, window: Window) -> Figure | None:
    output, prompt = _counter(rows, "output_tokens"), _counter(rows, "prompt_tokens")
    if output is None:
        return None
    new, old = _stretches(t)
    middle = (t[new] + t[old]) / 2
    made = (output[new] - output[old]) / (t[new] - t[old])
    taken = None if prompt is None else (prompt[new] - prompt[old]) / (t[new] - t[old])
    traces = [_line("output", middle, made, "@a", "%{y:.4g} output tokens/s at %{x:.1f} s")]
    columns, values = ["time (s)", "output (tokens/s)"], [middle, made]
    if taken is not None:
        traces.append(_line("prompt", middle, taken, "@b", "%{y:.4g} prompt tokens/s at %{x:.1f} s"))
        columns.append("prompt (tokens/s)")
        values.append(taken)
    layout = {"xaxis": time_axis(_end(t, window)), "yaxis": y_axis("tokens per second"), "shapes": [shaded(window)]}
    lead = "As the server counts them; some servers count a prompt when its request ends."
    return Figure("server-tokens", "Tokens per second at the server", traces, layout, _table(columns, values), lead)


def _hits(t: Floats, rows: Rows, window: Window) -> Figure | None:
    asked, found = _counter(rows, "prefix_queries"), _counter(rows, "prefix_hits")
    if asked is None or found is None or asked[-1] <= 0:
        return None
    new, old = _stretches(t)
    looked = asked[new] - asked[old]
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where(looked > 0, (found[new] - found[old]) / looked, np.nan)
    middle = (t[new] + t[old]) / 2
    traces = [_line("hit rate", middle, rate, "@c", "%{y:.1%} at %{x:.1f} s")]
    layout = {
        "xaxis": time_axis(_end(t, window)),
        "yaxis": share_axis("share of prompt tokens found"),
        "shapes": [shaded(window)],
    }
    lead = f"Over the whole load {share(float(found[-1] / asked[-1]))} of the prompt tokens were in the prefix cache."
    return Figure(
        "hits", "Prefix cache hit rate", traces, layout,
        _table(["time (s)", "hit rate"], [middle, rate], [number, share]), lead,
    )  # fmt: skip


def _replicas(t: Floats, rows: Rows, window: Window) -> Figure | None:
    ready, starting, wanted = (_gauge(rows, f"replicas_{name}") for name in ("ready", "starting", "wanted"))
    if ready is None or starting is None or wanted is None:
        return None
    traces = [
        _area("ready", t, ready, "@a", "replicas", "%{y:.0f} ready at %{x:.1f} s"),
        _area("starting", t, starting, "@b", "replicas", "%{y:.0f} starting at %{x:.1f} s"),
        _line("wanted", t, wanted, "@f", "%{y:.0f} wanted at %{x:.1f} s", dash="dot"),
    ]
    columns, values = ["time (s)", "ready", "starting", "wanted"], [t, ready, starting, wanted]
    is_open = _gauge(rows, "requests_open")
    if is_open is not None:
        columns.append("requests open")
        values.append(is_open)
    layout = {"xaxis": time_axis(_end(t, window)), "yaxis": y_axis("replicas"), "shapes": [shaded(window)]}
    lead = "Replicas that take requests and those in their cold start, on top of each other, and how many were wanted."
    return Figure("replicas", "Replicas over time", traces, layout, _table(columns, values), lead)


def _gauge(rows: Rows, name: str) -> Floats | None:
    found = np.array([row["common"].get(name, np.nan) for row in rows], dtype=np.float64)
    return found if np.isfinite(found).any() else None


def _counter(rows: Rows, name: str) -> Floats | None:
    """From 0 at the first sample; a restart of the server, where a counter falls, adds nothing."""
    found = _gauge(rows, name)
    if found is None:
        return None
    there = np.isfinite(found)
    found = np.interp(np.arange(len(found)), np.flatnonzero(there), found[there])
    grown: Floats = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(found), 0.0))])
    return grown


def _stretches(t: Floats) -> tuple[Any, Any]:
    """Indices of both ends of stretches of samples: single steps hold too few requests to say anything."""
    reach = max(1, len(t) // 30)
    return np.arange(reach, len(t)), np.arange(0, len(t) - reach)


def _end(t: Floats, window: Window) -> float:
    return max(float(t[-1]), window.end_ns / 1e9)


def _area(name: str, x: Floats, y: Floats, colour: str, group: str, hover: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "stackgroup": group,
        "line": {"color": colour, "width": 0, "shape": "hv"}, "fillcolor": f"{colour}/0.65",
        "hovertemplate": hover + "<extra></extra>",
    }  # fmt: skip


def _line(
    name: str, x: Floats, y: Floats, colour: str, hover: str, *, dash: str = "solid", fill: bool = False
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y,
        "line": {"color": colour, "width": 2, "dash": dash}, "hovertemplate": hover + "<extra></extra>",
        **({"fill": "tozeroy", "fillcolor": f"{colour}/0.15"} if fill else {}),
    }  # fmt: skip


def _table(columns: Sequence[str], values: Sequence[Floats], formats: Sequence[Any] = ()) -> Table:
    formats = formats or [number] * len(values)
    every = max(1, -(-len(values[0]) // 60))
    rows = [
        tuple(say(float(value)) if np.isfinite(value) else NOTHING for say, value in zip(formats, row, strict=True))
        for row in list(zip(*values, strict=True))[::every]
    ]
    return Table(tuple(columns), tuple(rows), num_words=0)
