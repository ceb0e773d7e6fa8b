"""Where the time to the first token went: the client's lag, the way, the server's queue, its prefill.

The server's parts come from timings that it sends with the answer (milliseconds: server_ms before its queue, queue_ms,
prefill_ms). What is left of the time from sending is the network and both HTTP stacks. They add up to TTFT.
"""

from __future__ import annotations

import numpy as np

from paceline.contracts.metrics import Latency
from paceline.lab.metrics.columns import Bools, Columns, Floats
from paceline.lab.metrics.judge import Times
from paceline.lab.metrics.latency import latency_of

PARTS = ("client_lag", "network", "server", "queue", "prefill")
SAVED = "prefill_saved"
_MIN_FIT = 20


def ttft_parts(columns: Columns, times: Times, members: Bools) -> dict[str, Floats]:
    """Seconds of each part, [k] each, of the members that ended well, were streamed and came with timings."""
    told = np.asarray(["prefill_ms" in r.server and "queue_ms" in r.server for r in columns.records], dtype=bool)
    chosen = np.flatnonzero(members & told & columns.ok & np.isfinite(times.ttft))
    if not len(chosen):
        return {}

    def server(name: str) -> Floats:
        return np.asarray([columns.records[i].server.get(name, 0.0) for i in chosen], dtype=np.float64) / 1e3

    before, queue, prefill = server("server_ms"), server("queue_ms"), server("prefill_ms")
    parts = {
        "client_lag": times.lag[chosen],
        "network": times.ttft_send[chosen] - before - queue - prefill,
        "server": before,
        "queue": queue,
        "prefill": prefill,
    }
    saved = _saved(columns, chosen.tolist(), prefill)
    return parts if saved is None else {**parts, SAVED: saved}


def ttft_split(columns: Columns, times: Times, members: Bools) -> dict[str, Latency]:
    """Distribution of each part; empty where the server sends no timings."""
    return {name: latency_of(values) for name, values in ttft_parts(columns, times, members).items()}


def _saved(columns: Columns, chosen: list[int], prefill: Floats) -> Floats | None:
    """Seconds of prefill that cached tokens saved: the run's own seconds per computed token (least squares over its
    requests) times the cached tokens. None below 20 requests, without hits, or where prefill does not grow with tokens.
    """
    prompt = np.asarray([columns.records[i].prompt_tokens for i in chosen], dtype=np.float64)
    cached = np.asarray([columns.records[i].cached_tokens for i in chosen], dtype=np.float64)
    if len(chosen) < _MIN_FIT or (prompt < 0).any() or (cached < 0).any() or not cached.any():
        return None
    computed = prompt - cached
    centred = computed - computed.mean()
    square = float(centred @ centred)
    if square <= 0:
        return None
    per_token = float(centred @ prefill) / square
    return cached * per_token if per_token > 0 else None
