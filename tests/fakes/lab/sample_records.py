"""Records of a made-up load on a made-up server, for reports: queueing, batching, a prefix cache, tenants and faults.

The server is a loop of steps: decode rows first, then a budget of prefill tokens. Nothing here is a measurement.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from paceline.contracts.artefact import Chunk, ChunkKind, RequestRecord, TokenSource
from paceline.contracts.slo import Outcome

NS = 1_000_000_000


@dataclass
class _Live:
    record: RequestRecord
    to_prefill: int
    to_decode: int
    cached: int
    queue_ms: float = 0.0
    started_ns: int = 0
    num_sent: int = 0


@dataclass
class SampleServer:
    """How fast the made-up server is."""

    rows: int = 24
    step_ms: float = 14.0
    row_ms: float = 0.55
    prefill_token_ms: float = 0.16
    prefill_budget: int = 256
    prefix_cache: bool = True
    kv_tokens: int = 24_000
    static_batch: bool = False  # a batch is taken in only when the one before is over
    scrapes: list[dict[str, Any]] = field(default_factory=list)

    def serve(self, records: list[RequestRecord], seed: int) -> None:
        """Fills in what happens to the requests, in order of their planned times."""
        draw = random.Random(seed)
        waiting = sorted(records, key=lambda r: r.t_plan_ns)
        queue: list[_Live] = []
        running: list[_Live] = []
        seen: set[str] = set()
        counters = {"prefix_queries": 0, "prefix_hits": 0, "output_tokens": 0, "prompt_tokens": 0, "num_preemptions": 0}
        now, next_scrape = 0, 0
        while waiting or queue or running:
            while waiting and waiting[0].t_plan_ns <= now:
                queue.append(self._arrive(waiting.pop(0), draw, seen))
            if not queue and not running:
                now = waiting[0].t_plan_ns
                continue
            if not (self.static_batch and running):
                while queue and len(running) < self.rows:
                    live = queue.pop(0)
                    live.queue_ms = (now - live.record.t_send_ns) / 1e6
                    live.started_ns = now
                    counters["prefix_queries"] += live.record.prompt_tokens
                    counters["prefix_hits"] += live.cached
                    running.append(live)
            budget, prefilled = self.prefill_budget, 0
            for live in running:
                part = min(budget - prefilled, live.to_prefill)
                live.to_prefill -= part
                prefilled += part
            rows = [live for live in running if live.to_prefill == 0]
            ms = self.step_ms + self.row_ms * len(rows) + self.prefill_token_ms * prefilled
            now += int(ms * draw.uniform(0.92, 1.12) * 1e6)
            counters["prompt_tokens"] += prefilled
            for live in rows:
                counters["output_tokens"] += 1
                self._token(live, now + draw.randrange(200_000, 2_000_000))
            running = [live for live in running if live.record.t_close_ns < 0]
            if now >= next_scrape:
                held = sum(r.record.prompt_tokens + r.num_sent for r in running)
                self._scrape(now, len(running), len(queue), held, counters)
                next_scrape = now + NS // 2

    def _arrive(self, record: RequestRecord, draw: random.Random, seen: set[str]) -> _Live:
        record.t_send_ns = record.t_plan_ns + int(draw.expovariate(1 / 0.4) * 1e6)
        record.prompt_tokens = record.num_input_asked + draw.randrange(0, 2)
        group = f"{record.stream}-{record.session}"
        cached = record.num_prefix_asked if self.prefix_cache and group in seen else 0
        seen.add(group)
        record.cached_tokens = cached
        return _Live(record, record.prompt_tokens - cached, record.num_output_asked, cached)

    def _token(self, live: _Live, t_ns: int) -> None:
        record = live.record
        if live.num_sent == 0:
            record.t_headers_ns = t_ns - 400_000
            record.http_status = 200
            record.server = {
                "queue_ms": live.queue_ms,
                "prefill_ms": (t_ns - live.started_ns) / 1e6 - 1.0,
                "prefill_saved_ms": live.cached * self.prefill_token_ms,
            }
            record.chunks.append(Chunk(t_ns - 300_000, ChunkKind.ROLE))
        record.chunks.append(Chunk(t_ns, ChunkKind.CONTENT, 1, 4))
        live.num_sent += 1
        live.to_decode -= 1
        if record.outcome is Outcome.CLIENT_CANCEL and live.num_sent >= 5:
            record.t_close_ns = t_ns
        elif record.outcome is Outcome.STREAM_ERROR and live.num_sent >= 3:
            record.chunks.append(Chunk(t_ns, ChunkKind.ERROR))
            record.t_close_ns, record.reason = t_ns, "internal_error: the engine <restarted> & gave up"
        elif live.to_decode <= 0:
            record.chunks.append(Chunk(t_ns + 100_000, ChunkKind.USAGE))
            record.chunks.append(Chunk(t_ns + 120_000, ChunkKind.DONE))
            record.t_close_ns, record.outcome, record.reason = t_ns + 150_000, Outcome.OK, "length"
        record.completion_tokens = live.num_sent
        record.token_source = TokenSource.CHUNK_USAGE

    def _scrape(self, now: int, running: int, waiting: int, held: int, counters: dict[str, int]) -> None:
        values = {"num_running": running, "num_waiting": waiting, "kv_usage": min(1.0, held / self.kv_tokens)}
        common = {name: float(value) for name, value in {**values, **counters}.items()}
        self.scrapes.append({"t_ns": now, "common": common, "values": {}})


def planned_records(*, rate_rps: float, span_s: float, seed: int) -> list[RequestRecord]:
    """Poisson arrivals of two streams: chat of tenants gold and bronze with shared prefixes, and a batch stream."""
    draw = random.Random(seed)
    records: list[RequestRecord] = []
    at = 0.0
    while (at := at + draw.expovariate(rate_rps)) < span_s:
        chat = draw.random() < 0.75
        length = int(min(1800, max(24, draw.lognormvariate(5.3, 0.7))))
        answer = int(min(160, max(4, draw.lognormvariate(3.3, 0.6)))) if chat else 96
        lot = draw.random()
        record = RequestRecord(
            id=len(records),
            stream="chat" if chat else "summaries",
            slo_class="interactive" if chat else "background",
            tenant=("gold" if draw.random() < 0.4 else "bronze") if chat else "bronze",
            session=draw.randrange(12),
            t_plan_ns=int(at * NS),
            num_input_asked=length,
            num_output_asked=answer,
            num_prefix_asked=int(length * 0.6) // 16 * 16 if chat else 0,
        )
        if lot < 0.012:
            record.outcome = Outcome.CLIENT_CANCEL
        elif lot < 0.018:
            record.outcome = Outcome.STREAM_ERROR
        elif lot < 0.024:
            record.outcome, record.http_status, record.reason = Outcome.REJECTED, 429, "queue_full"
        records.append(record)
    return records


def served_records(
    server: SampleServer, *, rate_rps: float = 7.0, span_s: float = 75.0, seed: int = 1
) -> list[RequestRecord]:
    records = planned_records(rate_rps=rate_rps, span_s=span_s, seed=seed)
    refused = [r for r in records if r.outcome is Outcome.REJECTED]
    for record in refused:
        record.t_send_ns = record.t_plan_ns + 300_000
        record.t_headers_ns = record.t_close_ns = record.t_send_ns + 3_000_000
    server.serve([r for r in records if r.outcome is not Outcome.REJECTED], seed)
    return records
