"""What a load gives back: records, how well the client kept its schedule, and what to know about the run."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.contracts.artefact import TOKEN_KINDS, ClientHealth, RequestRecord
from paceline.contracts.slo import Outcome
from paceline.lab.load.connection import Attempt

ECHO_CHARS = 24  # so many of a prompt's characters in an error message are taken for a quotation


class Finished(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A record with what only validators need."""

    record: RequestRecord
    tool_calls: list[dict[str, Any]] = []


class LoadResult(msgspec.Struct, kw_only=True):
    """`records` are in the order of their ids. `partial`: interrupted, or a worker was lost; the records are still
    right for requests planned before `span_s`."""

    records: list[RequestRecord]
    health: ClientHealth
    started_wall: str  # ISO 8601, UTC: the wall clock at the start of the load
    t0_ns: int  # the start on this host's monotonic clock: other measurements join by it
    span_s: float  # of the schedule that was carried out
    partial: bool = False
    problems: list[str] = []  # a worker that died, ...


def finished(attempt: Attempt, worker: int, *, with_text: bool) -> Finished:
    """The record of an attempt that has ended."""
    answer, record = attempt.answer, attempt.job.record
    record.worker = worker
    record.t_plan_ns, record.t_send_ns = attempt.t_plan, attempt.t_send
    record.t_headers_ns, record.t_close_ns = attempt.t_headers, attempt.t_close
    record.chunks = answer.chunks
    assert attempt.outcome is not None, "an attempt that has not ended"
    record.outcome = attempt.outcome
    record.reason = attempt.reason
    if attempt.outcome not in (Outcome.OK, Outcome.TRUNCATED):
        record.reason = without_prompt(attempt.reason, attempt.job.body)
    record.http_status = attempt.status
    record.prompt_tokens, record.completion_tokens = answer.prompt_tokens, answer.completion_tokens
    record.cached_tokens, record.reasoning_tokens = answer.cached_tokens, answer.reasoning_tokens
    record.token_source = answer.token_source
    record.num_lost = answer.num_lost
    record.server = answer.server
    if with_text:
        record.text = answer.text
    return Finished(record=record, tool_calls=answer.tool_calls)


def first_token_s(record: RequestRecord) -> float | None:
    """Planned time to the first token, seconds."""
    for chunk in record.chunks:
        if chunk.kind in TOKEN_KINDS:
            return (chunk.t_ns - record.t_plan_ns) / 1e9
    return None


def per_token_s(record: RequestRecord) -> float | None:
    """TPOT for the display during a run; metrics have the exact one."""
    times = [chunk.t_ns for chunk in record.chunks if chunk.kind in TOKEN_KINDS]
    later = max(record.completion_tokens, len(times)) - 1
    return (times[-1] - times[0]) / 1e9 / later if len(times) > 1 else None


def without_prompt(words: str, body: bytes) -> str:
    """A server's words, unless they quote the request: records hold no prompts."""
    if len(words) <= ECHO_CHARS:
        return words
    text = body.decode("utf-8", "replace")
    step = ECHO_CHARS // 2
    pieces = (words[i : i + ECHO_CHARS] for i in range(0, len(words) - ECHO_CHARS + 1, step))
    if any(piece in text for piece in pieces):
        return f"{words[:ECHO_CHARS].partition(':')[0]}: (the server quoted the request)"
    return words
