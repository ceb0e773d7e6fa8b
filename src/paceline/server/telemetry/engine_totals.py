"""The engine's gauges, and its counters added up over the lives of its process.

An engine that starts again counts from 0. What its predecessor had counted at the last look stays in the sum, so a
counter here never goes back; what happened between the last look and the death is not known, and not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from paceline.contracts.ports import EngineStats
from paceline.server.telemetry.metric_table import METRICS


class EngineTotals:
    def __init__(self) -> None:
        self._stats: EngineStats | None = None  # of the newest look; None: the engine gave none
        self._restarts = 0
        self._life = 0
        self._now: dict[str, float] = {}  # this life's counters at its last look
        self._before: dict[str, float] = {}  # sums of earlier lives

    def look(self, stats: EngineStats | None, restarts: int) -> bool:
        """Take a look in. True if there was a step since the look before."""
        self._stats = stats
        self._restarts = max(self._restarts, restarts)
        if stats is None:
            return False
        now = _counters(stats)
        # a counter that falls belongs to another engine, whether or not somebody told
        if restarts != self._life or any(now[name] < value for name, value in self._now.items()):
            self._before = {name: self._before.get(name, 0.0) + value for name, value in self._now.items()}
            self._now = {}
        self._life = restarts
        stepped = now["engine_steps"] > self._now.get("engine_steps", 0.0)
        self._now = now
        return stepped

    def total(self, name: str) -> float:
        if name == "engine_restarts":
            return float(self._restarts)
        return self._before.get(name, 0.0) + self._now.get(name, 0.0)

    def families(self) -> Iterator[Metric]:
        gauges = {} if self._stats is None else _gauges(self._stats)
        gauges["engine_up"] = float(self._stats is not None)
        for metric in METRICS.values():
            if not metric.sampled:
                continue
            if metric.kind == "counter":
                yield CounterMetricFamily(metric.full_name, metric.doc, value=self.total(metric.name))
                continue
            family = GaugeMetricFamily(metric.full_name, metric.doc, labels=metric.labels)
            if metric.name == "kv_blocks":
                for state in ("free", "cached", "held", "limbo") if self._stats is not None else ():
                    family.add_metric((state,), getattr(self._stats.kv, state))  # type: ignore[union-attr]
            elif metric.name in gauges:
                family.add_metric((), gauges[metric.name])
            yield family


def _gauges(stats: EngineStats) -> dict[str, float]:
    return {
        "engine_stalled": float(stats.stalled),
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
        "num_tokens_waiting": stats.waiting_tokens,
        "kv_cache_usage_perc": stats.kv.usage,
    }


def _counters(stats: EngineStats) -> dict[str, float]:
    return {
        "engine_steps": stats.step,
        "num_preemptions": stats.num_preemptions,
        "computed_tokens": stats.computed_tokens,
        "wasted_tokens": stats.wasted_tokens,
        "output_tokens": stats.output_tokens,
        "prefix_cache_queries": stats.kv.query_tokens,
        "prefix_cache_hits": stats.kv.hit_tokens,
        "prefix_cache_evictions": stats.kv.evictions,
        "prefix_cache_saved_ms": stats.saved_prefill_ms,
        "requests_refused_late": stats.num_refused_late,
        "requests_late": stats.num_late,
        "paced_steps": stats.num_paced_steps,
    }
