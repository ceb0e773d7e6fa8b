"""The server's metrics: counted as sequences end, sampled from the engine at each scrape, written for Prometheus.

The registry is this object's own, so two servers in a process (tests) do not meet. Creating one turns off the
`_created` series of prometheus-client, which is a switch of the whole process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from paceline.contracts.ports import EngineStats
from paceline.contracts.slo import Timeline
from paceline.server.telemetry.engine_totals import EngineTotals
from paceline.server.telemetry.metric_table import METRICS, PREFIX
from paceline.server.tenancy.tenants import TenantUse
from paceline.server.tenancy.usage import UsageLedger
from paceline.server.tenancy.usage_record import UsageRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
    "/health",
    "/ready",
    "/version",
    "/metrics",
    "/v1/internal",
    "/",
)


class ServerMetrics:
    """`on_...` tell it what happened, `render` writes it. Used from the event loop.

    `tenants` and `classes` are the label values there can be; any other becomes "other". `info` may give version,
    model, dtype, device, block_size, num_blocks, and may come later.
    """

    def __init__(
        self,
        *,
        tenants: Sequence[str] = ("default",),
        classes: Sequence[str] = ("interactive", "default", "batch"),
        ledger: UsageLedger | None = None,
        info: dict[str, object] | None = None,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._tenants = frozenset(tenants)
        self._classes = frozenset(classes)
        self._ledger = ledger
        self._info: dict[str, str] = {}
        self._totals = EngineTotals()
        self._accounts: dict[str, TenantUse] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS.values():
            if metric.sampled or metric.name.startswith(("usage_", "tenant_")):
                continue
            if metric.kind == "counter":
                self._counters[metric.name] = Counter(
                    metric.full_name, metric.doc, metric.labels, registry=self.registry
                )
            elif metric.kind == "histogram":
                self._histograms[metric.name] = Histogram(
                    metric.full_name, metric.doc, metric.labels, buckets=metric.bounds, registry=self.registry
                )
        self.registry.register(_Sampled(self))
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.set_info(**(info or {}))

    # --- what happened

    def set_info(self, **info: object) -> None:
        """Facts for `server_info` and `cache_config_info`; unknown names are left out of them."""
        known = (*METRICS["server"].labels, *METRICS["cache_config"].labels)
        self._info |= {name: str(value) for name, value in info.items() if name in known and value is not None}

    def on_finish(self, record: UsageRecord, timeline: Timeline | None = None) -> None:
        """A sequence ended, in whatever way, or was refused (no finish reason). Its `timeline` brings the gaps between
        its tokens."""
        by = (self._tenant(record.tenant), self._class(record.service_class))
        count = self._counters
        if record.counts:
            count["requests"].labels(*by).inc()
        if record.finish_reason is None:  # no engine ever had it
            count["requests_refused"].labels(*by, record.outcome.value).inc()
            return
        if record.good:
            count["requests_good"].labels(*by).inc()
        count["requests_finished"].labels(*by, record.finish_reason).inc()
        count["prompt_tokens"].labels(*by).inc(record.prompt_tokens)
        count["prompt_tokens_cached"].labels(*by).inc(record.cached_tokens)
        count["generation_tokens"].labels(*by).inc(record.output_tokens)
        count["kv_block_seconds"].labels(*by).inc(record.kv_block_seconds)
        self._observe("request_prompt_tokens", by[1], record.prompt_tokens)
        self._observe("request_generation_tokens", by[1], record.output_tokens)
        for name, ms in (
            ("time_to_first_token_seconds", record.ttft_ms),
            ("request_time_per_output_token_seconds", record.tpot_ms),
            ("e2e_request_latency_seconds", record.e2e_ms),
            ("request_queue_time_seconds", record.queue_ms),
            ("request_prefill_time_seconds", record.prefill_ms),
            ("reclaim_seconds", record.reclaim_ms),
        ):
            if ms is not None:
                self._observe(name, by[1], ms / 1e3)
        if timeline is not None:
            gaps = self._histograms["inter_token_latency_seconds"].labels(by[1])
            for gap in timeline.itl_s():
                gaps.observe(gap)

    def on_response(self, path: str, status: int) -> None:
        """A response was begun (its status is known)."""
        self._counters["http_requests"].labels(_endpoint(path), str(status)).inc()

    def on_stats(self, stats: EngineStats | None, restarts: int = 0) -> None:
        """A look at the engine, or None: it gave none. `restarts` tells the lives of the engine apart."""
        if self._totals.look(stats, restarts) and stats is not None and stats.last_step:
            last = stats.last_step
            self._histograms["step_device_seconds"].observe(last.get("device_ms", 0.0) / 1e3)
            self._histograms["step_rows"].observe(last.get("rows", 0.0))
            self._histograms["iteration_tokens_total"].observe(last.get("tokens", 0.0))

    def on_tenants(self, accounts: dict[str, TenantUse]) -> None:
        """A look at what tenants have in use and were refused (`TenantBook.usage_now`)."""
        self._accounts = accounts

    # --- what is shown

    def render(self) -> tuple[bytes, str]:
        """The text a scrape gets, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE

    def sampled(self) -> Iterator[Metric]:
        """Families that are read rather than counted."""
        yield from self._totals.families()
        yield self._info_family("server")
        yield self._info_family("cache_config")
        yield from self._tenant_families()
        ledger = self._ledger
        records = CounterMetricFamily(PREFIX + "usage_records", METRICS["usage_records"].doc, labels=("state",))
        records.add_metric(("written",), ledger.num_written if ledger else 0)
        records.add_metric(("lost",), ledger.num_lost if ledger else 0)
        yield records
        errors = ledger.num_errors if ledger else 0
        yield CounterMetricFamily(PREFIX + "usage_errors", METRICS["usage_errors"].doc, value=errors)
        waiting = ledger.num_kept if ledger else 0
        yield GaugeMetricFamily(PREFIX + "usage_records_waiting", METRICS["usage_records_waiting"].doc, value=waiting)

    def _tenant_families(self) -> Iterator[Metric]:
        open_, waiting = (
            GaugeMetricFamily(PREFIX + name, METRICS[name].doc, labels=("tenant",))
            for name in ("tenant_sequences", "tenant_sequences_waiting")
        )
        refused = METRICS["tenant_refusals"]
        refusals = CounterMetricFamily(refused.full_name, refused.doc, labels=refused.labels)
        for tenant, use in self._accounts.items():
            open_.add_metric((tenant,), use.open)
            waiting.add_metric((tenant,), use.waiting)
            for limit, count in use.refused.items():
                refusals.add_metric((tenant, limit), count)
        yield from (open_, waiting, refusals)

    def _info_family(self, name: str) -> InfoMetricFamily:
        metric = METRICS[name]
        value = {label: self._info.get(label, "") for label in metric.labels}
        return InfoMetricFamily(metric.full_name, metric.doc, value=value)

    def _observe(self, name: str, service_class: str, value: float) -> None:
        self._histograms[name].labels(service_class).observe(value)

    def _tenant(self, name: str) -> str:
        return name if name in self._tenants else OTHER

    def _class(self, name: str) -> str:
        return name if name in self._classes else OTHER


class _Sampled:
    """A collector (prometheus-client's word) over `ServerMetrics.sampled`."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Metric]:
        return self._metrics.sampled()


def _endpoint(path: str) -> str:
    """A label value for a path: one of `ENDPOINTS`, which stand for what is below them too."""
    for stem in ("/v1/internal", "/v1/models", "/v1/messages"):
        if path.startswith(stem + "/"):
            return stem
    if path.startswith("/static/"):
        return "/"
    return path if path in ENDPOINTS else OTHER
