"""From a script's reply and a request to events with their times.

Two sources, one way: `Reply` lists its chunks, `Service` makes them. `finishing` puts the rest around them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache

from paceline.contracts.artefact import TOKEN_KINDS, ChunkKind
from paceline.lab.mock.asks import Ask
from paceline.lab.mock.finishing import Draft, Setting, finish, late_head
from paceline.lab.mock.play import MS, Piece, Play, frame, whole
from paceline.lab.mock.script import Flavour, Reply, ScriptChunk, Service
from paceline.lab.mock.wording import DONE, Voice, encode, error_value, sse, usage
from paceline.lab.mock.words import answer_text


def play_service(service: Service, setting: Setting) -> Play:
    """A generated reply, from the beginning of its service."""
    ask, voice = setting.ask, setting.voice
    num_tokens, reason = _length(service, ask)
    apart = voice.finish_apart or not num_tokens or (ask.timings and not ask.include_usage)
    chunks = _chunks(voice, num_tokens, service.bundles, None if apart else reason, ask.streamed)
    pieces = _timed(service, setting, chunks)
    first = pieces[0].at_ns if pieces else None
    if ask.streamed and ask.chat:
        at = (first or 0) if service.role_ms is None else round(service.role_ms * MS)
        pieces.insert(0, Piece(min(at, first or at), _role(voice), ChunkKind.ROLE))
    cached = None if voice.flavour is Flavour.OPENAI and not service.prefix_cache else setting.cached_tokens
    draft = Draft(
        pieces,
        () if ask.streamed else (ScriptChunk(text=answer_text(0, num_tokens)),),
        usage(len(ask.words), max(0, num_tokens + service.usage_offset_tokens), cached),
        reason,
        num_tokens,
        finish_said=not apart,
        tail_ms=service.tail_ms,
        headers_ms=service.headers_ms,
    )
    play = finish(draft, service.fault, setting)
    play.prefilled_ns = first
    return play


def _length(service: Service, ask: Ask) -> tuple[int, str]:
    wanted = service.num_tokens if ask.max_tokens is None else ask.max_tokens
    own_end = service.stop_after_tokens
    if own_end is None or ask.ignore_eos:
        return wanted, "length"
    natural = max(own_end, ask.min_tokens)
    return (natural, "stop") if natural < wanted else (wanted, "length")


@lru_cache(maxsize=1024)
def _chunks(
    voice: Voice, num_tokens: int, bundles: tuple[int, ...], reason: str | None, streamed: bool
) -> tuple[Piece, ...]:
    """The chunks of an answer that takes no time. `reason`: the last one says why it ended."""
    found: list[Piece] = []
    done = 0
    while done < num_tokens:
        count = min(bundles[len(found) % len(bundles)], num_tokens - done)
        text, done = answer_text(done, count), done + count
        last = reason if done == num_tokens else None
        data = b""
        if streamed:
            value = voice.piece(ChunkKind.CONTENT, text, num_tokens=count, num_so_far=done, finish=last)
            data = frame(sse(value))
        found.append(Piece(0, data, ChunkKind.CONTENT, count))
    return tuple(found)


@lru_cache(maxsize=256)
def _role(voice: Voice) -> bytes:
    return frame(sse(voice.role()))


def _timed(service: Service, setting: Setting, chunks: Sequence[Piece]) -> list[Piece]:
    """The chunks, each at its time after the beginning of service."""
    computed = len(setting.ask.words) - setting.cached_tokens
    first = (service.ttft_ms + service.prefill_ms_per_token * computed) * MS
    step = service.tpot_ms * MS
    if not service.jitter and not first and not step:
        return list(chunks)
    draw = random.Random(f"{service.seed}:{setting.number}") if service.jitter else None
    found, at = [], 0.0
    for i, (_, data, kind, count) in enumerate(chunks):
        gap = step * count if i else first
        at += gap if draw is None else gap * _spread(draw, service.jitter)
        found.append(Piece(round(at), data, kind, count))
    return found


def _spread(draw: random.Random, relative: float) -> float:
    """Log-normal with mean 1 and that relative standard deviation."""
    variance = math.log1p(relative * relative)
    return math.exp(math.sqrt(variance) * draw.gauss(0.0, 1.0) - variance / 2)


def play_reply(reply: Reply, setting: Setting) -> Play:
    """A reply that the script writes out."""
    times = _scripted_times(reply.chunks)
    end_ns = times[-1] if times else 0
    if reply.fault.never_answer:
        return finish(Draft([], (), {}, "", 0), reply.fault, setting)
    if reply.status != 200:
        return _refusal(reply, end_ns)
    total = sum(map(_tokens_of, reply.chunks))
    if reply.body is not None:
        data = whole(200, reply.body.encode(), reply.headers)
        return Play(late_head([Piece(end_ns, data, ChunkKind.CONTENT, total)], reply.fault), hold_ns=end_ns)
    kinds = {chunk.kind for chunk in reply.chunks}
    last = reply.chunks[-1] if reply.chunks else None
    apart = setting.voice.finish_apart or setting.ask.timings or last is None
    said = not apart and last is not None and last.raw is None and _tokens_of(last) > 0
    value = usage(
        len(setting.ask.words) if reply.prompt_tokens is None else reply.prompt_tokens,
        total if reply.completion_tokens is None else reply.completion_tokens,
        reply.cached_tokens,
        reply.reasoning_tokens,
    )
    draft = Draft(
        _events(reply, setting, times, value, reply.finish_reason if said else None),
        reply.chunks,
        value,
        reply.finish_reason,
        total,
        finish_said=said,
        broken_off=ChunkKind.ERROR in kinds,
        done_said=ChunkKind.DONE in kinds,
        tail_ms=reply.tail_ms,
        headers_ms=reply.headers_ms,
    )
    return finish(draft, reply.fault, setting, reply.headers)


def _scripted_times(chunks: Sequence[ScriptChunk]) -> list[int]:
    times, at = [], 0.0
    for chunk in chunks:
        at = max(at, chunk.at_ms * MS) if chunk.at_ms is not None else at + chunk.delay_ms * MS
        times.append(round(at))
    return times


def _tokens_of(chunk: ScriptChunk) -> int:
    if chunk.kind not in TOKEN_KINDS:
        return 0
    return len(chunk.text.split()) if chunk.num_tokens is None else chunk.num_tokens


def _events(
    reply: Reply, setting: Setting, times: Sequence[int], usage: dict[str, object], reason: str | None
) -> list[Piece]:
    pieces: list[Piece] = []
    so_far, tool_index = 0, -1
    for i, (at, chunk) in enumerate(zip(times, reply.chunks, strict=True)):
        count = _tokens_of(chunk)
        so_far += count
        tool_index += chunk.tool is not None
        data = b""
        if setting.ask.streamed:
            finish = reason if i == len(times) - 1 else None
            data = frame(_event(setting.voice, chunk, count, so_far, max(0, tool_index), finish, usage))
        pieces.append(Piece(at, data, chunk.kind, count))
    return pieces


def _event(
    voice: Voice,
    chunk: ScriptChunk,
    count: int,
    so_far: int,
    tool_index: int,
    finish: str | None,
    usage: dict[str, object],
) -> bytes:
    if chunk.raw is not None:
        return chunk.raw.encode()
    if chunk.kind is ChunkKind.ERROR:
        return sse(error_value(chunk.text or "the engine failed", "internal", 500))
    if chunk.kind is ChunkKind.DONE:
        return DONE
    if chunk.kind is ChunkKind.USAGE:
        return sse({**voice.chunk([], None, so_far), "usage": usage})
    value = voice.piece(
        chunk.kind,
        chunk.text,
        num_tokens=count,
        num_so_far=so_far,
        tool=chunk.tool,
        tool_index=tool_index,
        finish=finish,
        extra=chunk.extra,
    )
    return sse(value)


def _refusal(reply: Reply, at_ns: int) -> Play:
    headers = dict(reply.headers)
    if reply.retry_after_s is not None:
        headers.setdefault("retry-after", f"{reply.retry_after_s:g}")
    body = encode(error_value(reply.message, reply.code, reply.status)) if reply.body is None else reply.body.encode()
    pieces = [Piece(at_ns, whole(reply.status, body, headers))]
    return Play(late_head(pieces, reply.fault), status=reply.status, hold_ns=at_ns)
