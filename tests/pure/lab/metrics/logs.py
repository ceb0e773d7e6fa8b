"""Logs written by hand: times in milliseconds, so that every figure can be checked with a pencil."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.contracts.artefact import Chunk, ChunkKind, RequestRecord, RunInfo, TargetInfo, TokenSource, Window
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass

ROLE, REASONING, CONTENT, TOOL = ChunkKind.ROLE, ChunkKind.REASONING, ChunkKind.CONTENT, ChunkKind.TOOL
USAGE, ERROR, DONE = ChunkKind.USAGE, ChunkKind.ERROR, ChunkKind.DONE


def ns(ms: float) -> int:
    return round(ms * 1e6)


def chunk(ms: float, num_tokens: int = 1, kind: ChunkKind = CONTENT, num_bytes: int = 4) -> Chunk:
    return Chunk(ns(ms), kind, num_tokens, num_bytes)


def record(
    number: int,
    chunks: Sequence[Chunk] = (),
    *,
    plan: float = 0.0,
    send: float | None = None,
    close: float | None = None,
    total: int | None = None,
    source: TokenSource = TokenSource.CHUNK_USAGE,
    outcome: Outcome = Outcome.OK,
    **rest: Any,
) -> RequestRecord:
    """`total`: completion tokens of usage; by default what the chunks add up to. `close`: at the last chunk."""
    counted = sum(c.num_tokens for c in chunks if c.num_tokens > 0)
    end = chunks[-1].t_ns if chunks else ns(plan)
    return RequestRecord(
        id=number,
        stream=rest.pop("stream", "s"),
        t_plan_ns=ns(plan),
        t_send_ns=ns(plan if send is None else send),
        t_close_ns=end if close is None else ns(close),
        chunks=list(chunks),
        outcome=outcome,
        completion_tokens=counted if total is None else total,
        token_source=source,
        http_status=200,
        **rest,
    )


def info(*slo: SloClass, start: float = 0.0, end: float = 10_000.0, **rest: Any) -> RunInfo:
    """Window in milliseconds."""
    return RunInfo(
        name=rest.pop("name", "run"),
        slo=list(slo),
        span_s=end / 1e3,
        window=Window(start_ns=ns(start), end_ns=ns(end)),
        target=TargetInfo(url="http://127.0.0.1:1", model="m"),
        **rest,
    )


def steady_log(
    n: int, *, every: float = 100.0, ttft: float = 50.0, gap: float = 10.0, tokens: int = 5
) -> list[RequestRecord]:
    """n equal requests at a constant rate."""
    return [
        record(i, [chunk(i * every + ttft + k * gap) for k in range(tokens)], plan=i * every, num_output_asked=tokens)
        for i in range(n)
    ]
