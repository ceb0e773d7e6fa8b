"""From what a simulation tells to what the lab stores: the same records, so the same metrics and the same report.

A simulated client is on time, so sending is planning. All of TTFT is the engine's, queue and prefill, but for `lag_s`:
what an answer takes outside it, where a served calibration has told. Numbers are those of `lab.metrics.compute` on
these records; nothing is defined here.
"""

from __future__ import annotations

from typing import Any

from paceline.contracts.artefact import (
    NEVER,
    Chunk,
    ChunkKind,
    ClientHealth,
    RequestRecord,
    RunInfo,
    TargetInfo,
    TokenSource,
    Window,
)
from paceline.contracts.slo import Outcome
from paceline.lab.workload import Plan, WorkloadSpec, spec_to_dict
from paceline.sim.cluster import Ended


def record_of(ended: Ended, lag_s: float = 0.0, *, saves_restored: bool = False) -> RequestRecord:
    """One request as a load generator would have written it down. Times are nanoseconds from the start of the load.

    `saves_restored`: what was restored was not computed for this request, and a server would call it cached.
    """
    planned = ended.planned
    record = RequestRecord(
        id=planned.id,
        stream=planned.stream,
        slo_class=planned.slo_class,
        tenant=planned.tenant,
        session=planned.session,
        turn=planned.turn,
        streamed=planned.streamed,
        t_plan_ns=_ns(ended.plan_s),
        outcome=ended.outcome,
        reason=ended.reason,
        num_input_asked=planned.num_input_tokens,
        num_output_asked=planned.num_output_tokens,
        num_prefix_asked=planned.num_prefix_tokens,
        num_shared_asked=len(planned.shared) * planned.num_shared_tokens,
    )
    if ended.outcome is Outcome.NOT_SENT:
        return record
    record.t_send_ns = _ns(ended.sent_s)
    record.t_close_ns = _ns(ended.end_s + lag_s)
    record.http_status = ended.http_status
    if ended.timeline is not None:
        _add_answer(record, ended, lag_s, saves_restored)
    return record


def _add_answer(record: RequestRecord, ended: Ended, lag_s: float, saves_restored: bool) -> None:
    timeline, usage = ended.timeline, ended.usage
    assert timeline is not None
    chunks = [Chunk(_ns(time + lag_s), ChunkKind.CONTENT, count, count) for time, count in timeline.chunks]
    num_tokens = timeline.num_tokens
    if not record.streamed and chunks:  # the answer comes in one piece, with the last token
        chunks = [Chunk(chunks[-1].t_ns, ChunkKind.CONTENT, num_tokens, num_tokens)]
    record.chunks = chunks
    if chunks:
        record.t_headers_ns = chunks[0].t_ns
        record.token_source = TokenSource.CHUNK_USAGE
        record.server = {
            "replica": float(ended.replica),
            "server_ms": 1e3 * lag_s,
            "queue_ms": 1e3 * timeline.queue_s,
            "prefill_ms": 1e3 * timeline.prefill_s,
        }
    if usage is not None:
        record.prompt_tokens = usage.prompt_tokens
        record.completion_tokens = num_tokens
        record.cached_tokens = usage.cached_tokens
        if saves_restored and usage.restored_tokens:
            record.cached_tokens += usage.restored_tokens
            record.server["restored_tokens"] = float(usage.restored_tokens)
        record.reasoning_tokens = 0


def info_of(
    spec: WorkloadSpec,
    plan: Plan,
    records: list[RequestRecord],
    *,
    target: TargetInfo,
    config: dict[str, Any],
    fingerprint: dict[str, Any],
    name: str = "",
    question: str = "",
) -> RunInfo:
    """All of a run that is not a record. It has no date: the same simulation gives the same bytes."""
    end_s = plan.span_s
    end_ns = _ns(end_s) if end_s > 0 else max((r.t_close_ns for r in records), default=0)
    scheduled = [r for r in plan.requests if r.at_s is not None]
    rate = len(scheduled) / end_s if end_s > 0 else 0.0
    return RunInfo(
        name=name or spec.name,
        question=question,
        seed=plan.seed,
        salt=plan.salt,
        spec=spec_to_dict(spec),
        slo=spec.classes,
        closed_loop=plan.closed_loop,
        span_s=end_s or end_ns / 1e9,
        window=Window(start_ns=min(_ns(spec.warmup_s), end_ns), end_ns=end_ns),
        target=target,
        client=ClientHealth(offered_rps=rate, achieved_rps=rate),
        config=config,
        config_source="resolved",
        fingerprint=fingerprint,
    )


def _ns(seconds: float) -> int:
    return NEVER if seconds == float("inf") else round(seconds * 1e9)
