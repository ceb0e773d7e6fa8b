"""Every metric of the server as one table: name, kind, labels, unit, meaning. The registry and the reference page are
both made from it.

Names are those of vLLM, with our prefix, where the meaning is the same. Label values come from configuration and from
closed lists, never from a request.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram", "info"]
PREFIX = "paceline:"

_BY = ("tenant", "service_class")
_BY_REASON = (*_BY, "finished_reason")
_CLASS = ("service_class",)
_ST = ("state",)
_ENDED = "Sequences that ended"

# Bounds grow by 1.5 to 2.5 and have the usual targets (50, 200, 500 ms, 2 s) among them.
_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160, 320)
_TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_STEP_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)
_RECLAIM_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. A counter's series is called `name` + `_total`."""

    name: str  # without the prefix
    kind: Kind
    unit: str
    doc: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets
    sampled: bool = False  # read from the engine at each scrape; else counted as requests end

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


def _engine(name: str, kind: Kind, unit: str, doc: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind=kind, unit=unit, doc=doc, labels=labels, sampled=True)


def _counter(name: str, unit: str, doc: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name=name, kind="counter", unit=unit, doc=doc, labels=labels)


def _histogram(name: str, unit: str, doc: str, bounds: tuple[float, ...], labels: tuple[str, ...] = _CLASS) -> Metric:
    return Metric(name=name, kind="histogram", unit=unit, doc=doc, labels=labels, bounds=bounds)


_METRICS = (
    # the engine now
    _engine("engine_up", "gauge", "0 or 1", "The engine answered this scrape; at 0 the gauges below are absent."),
    _engine("engine_stalled", "gauge", "0 or 1", "A step runs longer than the stall limit, or the engine failed."),
    _engine("num_requests_running", "gauge", "sequences", "Sequences that have a row and KV."),
    _engine("num_requests_waiting", "gauge", "sequences", "Sequences in the queue, preempted ones included."),
    _engine("num_tokens_waiting", "gauge", "tokens", "Known tokens of the sequences in the queue."),
    _engine("kv_cache_usage_perc", "gauge", "share", "Blocks held or touched by a step in flight, of all; 0 to 1."),
    _engine("kv_blocks", "gauge", "blocks", "Blocks: free, cached (findable, held by nobody), held, limbo.", _ST),
    # the engine since the server started, restarts included
    _engine("engine_restarts", "counter", "restarts", "Times the engine process was started again."),
    _engine("engine_steps", "counter", "steps", "Steps planned."),
    _engine("num_preemptions", "counter", "preemptions", "Sequences that gave up their KV, to be computed again."),
    _engine("computed_tokens", "counter", "tokens", "Positions that went through the model, wasted ones included."),
    _engine("wasted_tokens", "counter", "tokens", "Positions computed in vain: again, past a stop, abandoned."),
    _engine("output_tokens", "counter", "tokens", "Output tokens as they are made."),
    _engine("prefix_cache_queries", "counter", "tokens", "Prompt tokens looked for in the prefix cache."),
    _engine("prefix_cache_hits", "counter", "tokens", "Of them, those found."),
    _engine("prefix_cache_evictions", "counter", "blocks", "Cached blocks given to new content."),
    _engine("prefix_cache_saved_ms", "counter", "ms", "Prefill time that hits saved, by the cost model."),
    _engine("requests_refused_late", "counter", "sequences", "Refused: the first token would have missed its target."),
    _engine("requests_late", "counter", "sequences", "Passed by others: their TTFT target could not be met any more."),
    _engine("paced_steps", "counter", "steps", "Steps that took in less of a prompt, for running rows' targets."),
    # sequences
    _counter("requests", "sequences", f"{_ENDED} or were refused, the denominator of attainment: all but those whose "
             "client left before a target was missed.", _BY),
    _counter("requests_good", "sequences", "Of them, those that ended well within every target: goodput.", _BY),
    _counter("requests_finished", "sequences", f"{_ENDED}: by stop, length, abort, error or timeout.", _BY_REASON),
    _counter("requests_refused", "sequences", "Sequences the engine never had: rejected (by a limit or a full queue) "
             "or http_error (no engine).", (*_BY, "outcome")),
    _counter("prompt_tokens", "tokens", "Prompt tokens of ended sequences, cached ones included.", _BY),
    _counter("prompt_tokens_cached", "tokens", "Of them, those found in the prefix cache.", _BY),
    _counter("generation_tokens", "tokens", "Output tokens of ended sequences.", _BY),
    _counter("kv_block_seconds", "block-seconds", "KV blocks that ended sequences held, times how long.", _BY),
    _histogram("time_to_first_token_seconds", "s", "TTFT: arrival at the server to the first token.", _LATENCY_S),
    _histogram("request_time_per_output_token_seconds", "s", "TPOT: mean per token after the first chunk.", _TOKEN_S),
    _histogram("inter_token_latency_seconds", "s", "ITL: gaps between chunks, spread over their tokens.", _TOKEN_S),
    _histogram("e2e_request_latency_seconds", "s", "Arrival at the server to the last token.", _LATENCY_S),
    _histogram("request_queue_time_seconds", "s", "Arrival in the engine to first scheduled.", _LATENCY_S),
    _histogram("request_prefill_time_seconds", "s", "First scheduled to the first token.", _LATENCY_S),
    _histogram("request_prompt_tokens", "tokens", "Prompt tokens of a sequence.", _TOKENS),
    _histogram("request_generation_tokens", "tokens", "Output tokens of a sequence.", _TOKENS),
    _histogram("reclaim_seconds", "s", "The client's close to its KV blocks being free for others.", _RECLAIM_S),
    # tenants
    Metric(name="tenant_sequences", kind="gauge", unit="sequences", doc="Sequences open.", labels=("tenant",)),
    Metric(name="tenant_sequences_waiting", kind="gauge", unit="sequences", doc="Of them, those without a first token.",
           labels=("tenant",)),
    _counter("tenant_refusals", "calls", "Calls over a limit: requests, tokens, concurrency, waiting.",
             ("tenant", "limit")),
    # steps
    _histogram("step_device_seconds", "s", "Device time of a step.", _STEP_S, ()),
    _histogram("step_rows", "sequences", "Sequences in a step.", _ROWS, ()),
    _histogram("iteration_tokens_total", "tokens", "Positions computed in a step.", _TOKENS, ()),
    # the server
    _counter("http_requests", "responses", "Responses; an unknown path is other.", ("endpoint", "status")),
    _counter("usage_records", "records", "Records of the usage file: written, lost.", _ST),
    _counter("usage_errors", "errors", "Writes of the usage file that failed."),
    Metric(name="usage_records_waiting", kind="gauge", unit="records", doc="Usage records that wait for the disk."),
    Metric(name="server", kind="info", unit="", doc="Version of paceline; the model, its type, where it runs.",
           labels=("version", "model", "dtype", "device")),
    Metric(name="cache_config", kind="info", unit="", doc="Size of the KV cache.", labels=("block_size", "num_blocks")),
)  # fmt: skip

METRICS: dict[str, Metric] = {m.name: m for m in _METRICS}


def metrics_page() -> str:
    """The tables of `docs/reference/metrics.md`, between its two markers."""
    groups = (
        ("The engine, read at each scrape", [m for m in _METRICS if m.sampled]),
        ("Sequences, counted as they end", [m for m in _METRICS if not m.sampled and m.labels[:2] == _BY]),
        ("Histograms", [m for m in _METRICS if m.kind == "histogram"]),
        ("The server", [m for m in _METRICS if not m.sampled and m.kind != "histogram" and m.labels[:2] != _BY]),
    )
    lines: list[str] = []
    for title, metrics in groups:
        lines += [f"### {title}", "", "| Metric | Kind | Unit | Labels | Meaning |", "|---|---|---|---|---|"]
        for m in metrics:
            suffix = {"counter": "_total", "info": "_info"}.get(m.kind, "")
            labels = ", ".join(m.labels)
            lines.append(f"| `{m.full_name}{suffix}` | {m.kind} | {m.unit} | {labels} | {m.doc} |")
        lines.append("")
    return "\n".join(lines)
