"""Where the time to the first token went: client lag, network, queue, prefill; by how slow the requests were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.contracts.metrics import Latency
from paceline.lab.metrics.split import SAVED, ttft_parts
from paceline.lab.report.charts.base import best_unit, category_axis
from paceline.lab.report.page import Figure, Table
from paceline.lab.report.requests import Requests
from paceline.lab.report.words import count, seconds

PARTS = {
    "client_lag": ("client lag", "@d"),
    "network": ("network", "@e"),
    "server": ("server before its queue", "@f"),
    "queue": ("queue", "@b"),
    "prefill": ("prefill", "@a"),
}
_BANDS = ((0.0, 0.5, "fastest half"), (0.5, 0.9, "50–90 %"), (0.9, 0.99, "90–99 %"), (0.99, 1.0, "slowest 1 %"))
_LEAST = 3  # requests of a band


def split_chart(requests: Requests) -> Figure | None:
    """Mean parts of TTFT for bands of requests by their TTFT, and the prefill that the cache saved, which was not
    spent. None where the server does not tell its part."""
    parts = ttft_parts(requests.columns, requests.times, requests.inside)
    if not parts:
        return None
    saved = parts.pop(SAVED, None)
    total = np.sum(list(parts.values()), axis=0)
    order = np.argsort(total, kind="stable")
    bands: list[tuple[str, Any]] = [("all requests", order)]
    for low, high, name in _BANDS:
        inside = order[round(low * len(order)) : round(high * len(order))]
        if len(inside) >= _LEAST:
            bands.append((name, inside))
    names = [name for name, _ in bands]
    means = {key: [float(part[inside].mean()) for _, inside in bands] for key, part in parts.items()}
    factor, unit = best_unit([float(total[inside].mean()) for _, inside in bands])
    traces: list[dict[str, Any]] = [
        {
            "type": "bar", "orientation": "h", "name": PARTS[key][0], "y": names, "marker": {"color": PARTS[key][1]},
            "x": [value * factor for value in values],
            "hovertemplate": f"%{{y}}: {PARTS[key][0]} %{{x:.4g}} {unit}<extra></extra>",
        }
        for key, values in means.items()
    ]  # fmt: skip
    lead = _lead(means)
    if saved is not None:
        mean = float(saved.mean())
        lead += f" The prefix cache saved {seconds(mean)} of prefill per request, which is not part of TTFT."
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": "prefill saved by the cache", "y": ["saved, not spent"],
                "x": [mean * factor], "hovertemplate": f"%{{x:.4g}} {unit} of prefill saved<extra></extra>",
                "marker": {"color": "@c/0.3", "line": {"color": "@c", "width": 1.5}}, "meta": {"swatch": "@c"},
            }
        )  # fmt: skip
    layout = {
        "barmode": "stack", "bargap": 0.35,
        "xaxis": {"title": {"text": f"mean per request ({unit})"}, "rangemode": "tozero"},
        "yaxis": category_axis(autorange="reversed"),
    }  # fmt: skip
    rows = tuple(
        (name, count(len(inside)), *(seconds(means[key][i]) for key in means), seconds(float(total[inside].mean())))
        for i, (name, inside) in enumerate(bands)
    )
    table = Table(("requests", "n", *(PARTS[key][0] for key in means), "TTFT"), rows)
    height = 70 + 38 * (len(bands) + (saved is not None))
    return Figure(
        "ttft-split", "TTFT by how slow the request was", traces, layout, table, lead, height=height, wide=True
    )


def _lead(means: Mapping[str, list[float]]) -> str:
    """Which part makes the slowest band slow."""
    grown = {key: values[-1] - values[0] for key, values in means.items()}
    most = max(grown, key=lambda key: grown[key])
    if grown[most] <= 0:
        return "The parts of TTFT are the same for fast and slow requests."
    return f"What makes the slowest requests slow is {PARTS[most][0]}: {seconds(means[most][-1])} of their mean TTFT."


def split_rows(stored: Mapping[str, Latency]) -> Table | None:
    """The run's own numbers of the split."""
    if not stored:
        return None
    rows = []
    for key, latency in stored.items():
        marks = [seconds(e.value) for e in (latency.p50, latency.p90, latency.p95, latency.p99)]
        rows.append(
            (PARTS[key][0] if key in PARTS else key.replace("_", " "), count(latency.n), seconds(latency.mean), *marks)
        )
    return Table(("part", "n", "mean", "p50", "p90", "p95", "p99"), tuple(rows), caption="Parts of TTFT")
