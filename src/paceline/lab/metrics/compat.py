"""What other load tools would have printed for the same records: so that two reports of one server can be compared.

Only definitions are followed (as of late 2026, see docs/reference/lab-metrics.md for the sources of each difference);
nothing here decides anything. All times are milliseconds, as those tools print them. Where a tool counts tokens with a
tokenizer of its own, the server's counts stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paceline.contracts.artefact import RequestRecord, RunInfo
from paceline.lab.metrics.columns import Columns, Floats, columns_of

Figures = dict[str, float | None]


def compat(info: RunInfo, records: Sequence[RequestRecord]) -> dict[str, Figures]:
    """Tool -> figure -> value, over the whole run (these tools know no window, so warm-up and drain are in). None where
    the tool would show nothing."""
    c = columns_of(records)
    return {name: figures(info, c) for name, figures in _TOOLS.items()}


def _vllm_bench(info: RunInfo, c: Columns) -> Figures:
    """Linear percentiles; from the send; ITL is the gap between events; failures leave no trace but their number; the
    span ends with the drain; TPOT of one token is 0 and meets its target."""
    ok = c.ok
    tokens = np.nan_to_num(c.tokens)
    tpot = np.where(tokens > 1, (c.last - c.first) / np.maximum(tokens - 1, 1), 0.0)
    good = ok.copy()
    targets = {s.name: s for s in info.slo}
    for i in np.flatnonzero(ok):
        slo = targets.get(c.records[i].slo_class)
        if slo is None:
            continue
        pairs = (
            (slo.ttft_s, c.first[i] - c.send[i]),
            (slo.tpot_s, tpot[i]),
            (slo.e2e_s, c.last[i] - c.send[i]),
        )
        good[i] = all(limit is None or value <= limit for limit, value in pairs)
    span = _span(c)
    return {
        "completed": float(ok.sum()),
        "request_throughput": _per(float(ok.sum()), span),
        "request_goodput": _per(float(good.sum()), span),
        "output_throughput": _per(float(tokens[ok].sum()), span),
        **_linear("ttft", (c.first - c.send)[ok]),
        **_linear("tpot", tpot[ok & (tokens > 1)]),
        **_linear("itl", _gaps(c)),
        **_linear("e2el", (c.last - c.send)[ok]),
    }


def _guidellm(_: RunInfo, c: Columns) -> Figures:
    """From the send; "TPOT" includes the time to the first token (E2E over tokens), "ITL" is what is TPOT here, one
    mean per request; inverted-CDF percentiles; no goodput."""
    ok, tokens = c.ok, np.nan_to_num(c.tokens)
    itl = np.where(tokens > 1, (c.last - c.first) / np.maximum(tokens - 1, 1), np.nan)
    many = ok & np.isfinite(itl)
    return {
        "requests_per_second": _per(float(ok.sum()), _span(c)),
        "output_tokens_per_second": _per(float(tokens[ok].sum()), _span(c)),
        **_stepped("time_to_first_token", (c.first - c.send)[ok]),
        **_stepped("inter_token_latency", itl[many]),
        **_stepped("time_per_output_token", ((c.last - c.send) / np.maximum(tokens, 1))[ok & (tokens > 0)]),
        **_stepped("request_latency", (c.last - c.send)[ok]),
    }


def _aiperf(_: RunInfo, c: Columns) -> Figures:
    """From the send; "ITL" is (E2E - TTFT) / (tokens - 1), whatever the first chunk held; "ICL" the gap between events;
    linear percentiles; the span runs from the first send to the last response."""
    ok, tokens = c.ok, np.nan_to_num(c.tokens)
    many = ok & (tokens > 1)
    itl = (c.last - c.first)[many] / (tokens[many] - 1)
    return {
        "request_throughput": _per(float(ok.sum()), _span(c)),
        "output_token_throughput": _per(float(tokens[ok].sum()), _span(c)),
        **_linear("time_to_first_token", (c.first - c.send)[ok]),
        **_linear("inter_token_latency", itl),
        **_linear("inter_chunk_latency", _gaps(c)),
        **_linear("request_latency", (c.last - c.send)[ok]),
    }


def _chunk_counters(_: RunInfo, c: Columns) -> Figures:
    """Tools that take each event for a token, and let ITL include the time to the first one (llmperf and its kin)."""
    ok = c.ok
    num = np.diff(c.start).astype(np.float64)
    return {
        "output_throughput": _per(float(num[ok].sum()), _span(c)),
        **_linear("ttft", (c.first - c.send)[ok]),
        **_linear("inter_token_latency", ((c.last - c.send) / np.maximum(num, 1))[ok]),
        **_linear("end_to_end_latency", (c.close - c.send)[ok]),
    }


_TOOLS: dict[str, Callable[[RunInfo, Columns], Figures]] = {
    "vllm bench": _vllm_bench,
    "guidellm": _guidellm,
    "aiperf": _aiperf,
    "chunk counters": _chunk_counters,
}


def _gaps(c: Columns) -> Floats:
    """Between token events of one request, all requests together."""
    if len(c.t) < 2:
        return np.empty(0)
    owner = c.owner
    same = (owner[1:] == owner[:-1]) & c.ok[owner[1:]]
    return np.asarray(np.diff(c.t)[same], dtype=np.float64)


def _span(c: Columns) -> float:
    """First send to last end: warm-up and drain are in it."""
    if not np.isfinite(c.send).any():
        return 0.0
    ends = np.concatenate([c.last, c.close])
    return float(np.nanmax(ends) - np.nanmin(c.send)) if np.isfinite(ends).any() else 0.0


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _linear(name: str, values: Floats) -> Figures:
    """Mean, median and p99 by linear interpolation."""
    if not len(values):
        return {f"mean_{name}_ms": None, f"median_{name}_ms": None, f"p99_{name}_ms": None}
    p50, p99 = np.percentile(values, [50, 99])
    return {
        f"mean_{name}_ms": 1e3 * float(values.mean()),
        f"median_{name}_ms": 1e3 * float(p50),
        f"p99_{name}_ms": 1e3 * float(p99),
    }


def _stepped(name: str, values: Floats) -> Figures:
    """The same by the inverted CDF; 0 where there is nothing."""
    if not len(values):
        return {f"mean_{name}_ms": 0.0, f"median_{name}_ms": 0.0, f"p99_{name}_ms": 0.0}
    p50, p99 = np.percentile(values, [50, 99], method="inverted_cdf")
    return {
        f"mean_{name}_ms": 1e3 * float(values.mean()),
        f"median_{name}_ms": 1e3 * float(p50),
        f"p99_{name}_ms": 1e3 * float(p99),
    }
