"""What comes around a reply's own events: the reason of the end, usage, [DONE], faults, framing, the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.contracts.artefact import ChunkKind
from paceline.lab.mock.asks import Ask
from paceline.lab.mock.play import (
    LAST_PIECE,
    MS,
    End,
    Piece,
    Play,
    cut_by,
    end_of_work,
    frame,
    in_order,
    slow_head,
    split,
    stream_head,
    upto_tokens,
    whole,
    with_comments,
)
from paceline.lab.mock.script import Fault, Flavour, ScriptChunk
from paceline.lab.mock.whole_answers import llama_timings, paceline_timings, whole_answer
from paceline.lab.mock.wording import DONE, MALFORMED, Voice, encode, error_value, sse

NO_FAULT = Fault()
_DONE = frame(DONE)


@dataclass(slots=True)
class Setting:
    """What is known when a reply begins."""

    ask: Ask
    voice: Voice
    number: int  # of the request, for the jitter
    queue_ns: int = 0  # it waited so long for a slot
    cached_tokens: int = 0


@dataclass(slots=True)
class Draft:
    """A reply's own events, framed; of an answer that is not streamed, only their times and counts."""

    pieces: list[Piece]
    chunks: Sequence[ScriptChunk]  # for an answer that is not streamed
    usage: dict[str, Any]
    finish: str
    num_tokens: int
    finish_said: bool = False  # the last piece has the reason
    broken_off: bool = False  # the script wrote an error: neither reason nor usage follow
    done_said: bool = False  # the script wrote [DONE]
    tail_ms: float = 0.0
    headers_ms: float | None = None


def finish(draft: Draft, fault: Fault, setting: Setting, headers: Mapping[str, str] | None = None) -> Play:
    """The whole reply."""
    if fault.never_answer:
        return Play([], End.HANG)
    play = _streamed(draft, fault, setting, headers or {}) if setting.ask.streamed else _at_once(draft, fault, setting)
    if headers and not setting.ask.streamed:
        play.pieces[0] = _more_headers(play.pieces[0], headers)
    play.pieces = late_head(play.pieces, fault)
    play.hold_ns = end_of_work(play.pieces)
    play.cached_tokens = setting.cached_tokens
    return play


def late_head(pieces: list[Piece], fault: Fault) -> list[Piece]:
    """The faults that concern all bytes of a reply."""
    if fault.header_line_every_ms and pieces:
        pieces = in_order([*slow_head(pieces[0], fault.header_line_every_ms), *pieces[1:]])
    return split(pieces, fault.split_bytes, fault.split_gap_ms) if fault.split_bytes else pieces


def _streamed(draft: Draft, fault: Fault, setting: Setting, headers: Mapping[str, str]) -> Play:
    pieces, end = draft.pieces, End.KEEP
    early = False
    if fault != NO_FAULT:
        fault = _reached(fault, pieces)
        pieces, end, early = _with_faults(pieces, fault)
    if not early:
        pieces += _ending(draft, fault, setting)
    if fault.comment_every_ms:
        pieces = with_comments(pieces, fault.comment_every_ms)
    first = pieces[0].at_ns if pieces else 0
    at_headers = first if draft.headers_ms is None else min(first, round(draft.headers_ms * MS))
    pieces.insert(0, Piece(at_headers, stream_head(headers)))
    if end is End.KEEP:
        pieces.append(Piece(pieces[-1].at_ns, LAST_PIECE))
    return Play(pieces, end)


def _ending(draft: Draft, fault: Fault, setting: Setting) -> list[Piece]:
    """The reason, usage and [DONE], as far as the script has not said them."""
    ask, voice = setting.ask, setting.voice
    last = draft.pieces[-1].at_ns if draft.pieces else 0
    tail = last + round(draft.tail_ms * MS)
    told = timings(draft, setting)
    found: list[Piece] = []
    if draft.done_said:
        return found
    with_usage = ask.include_usage and not fault.no_usage and not draft.broken_off
    if not draft.finish_said and not draft.broken_off:
        value = voice.finish(draft.finish, draft.num_tokens)
        if not with_usage or voice.flavour is Flavour.LLAMA_CPP:
            _tell(value, told)
        found.append(Piece(last, frame(sse(value)), ChunkKind.ROLE))
    if with_usage:
        value = voice.chunk([], 0 if told else None, draft.num_tokens)
        value["usage"] = draft.usage
        _tell(value, told)
        found.append(Piece(tail, frame(sse(value)), ChunkKind.USAGE))
    if not fault.no_done:
        found.append(Piece(tail, _DONE, ChunkKind.DONE))
    return found


def _reached(fault: Fault, pieces: list[Piece]) -> Fault:
    """Without what would happen after more chunks of tokens than there are."""
    count = sum(piece.brings_tokens for piece in pieces)
    points = ("hang_after_chunks", "cut_after_chunks", "error_after_chunks", "malformed_after_chunks")
    beyond = {name: None for name in points if (getattr(fault, name) or 0) > count}
    return msgspec.structs.replace(fault, **beyond) if beyond else fault


def _with_faults(pieces: list[Piece], fault: Fault) -> tuple[list[Piece], End, bool]:
    """The pieces as they come, how that ends, and whether it ends before the answer does."""
    broken = fault.error_after_chunks is not None
    if fault.error_after_chunks is not None:
        kept, at = _kept(pieces, fault.error_after_chunks)
        error = frame(sse(error_value(fault.error_message, "internal", 500)))
        pieces = [*kept, Piece(at, error, ChunkKind.ERROR)]
        if fault.error_then_done:
            pieces.append(Piece(at, _DONE, ChunkKind.DONE))
    if fault.malformed_after_chunks is not None:
        kept, _ = _kept(pieces, fault.malformed_after_chunks)
        at = kept[-1].at_ns if kept else 0
        pieces = [*kept, Piece(at, frame(MALFORMED)), *pieces[len(kept) :]]
    early, end = cut_by(fault)
    if early is not None:
        kept, at = _kept(pieces, early)
        pieces = [*kept, Piece(kept[-1].at_ns if kept else at, b"")]
    return pieces, end, broken or early is not None


def _kept(pieces: list[Piece], num_chunks: int) -> tuple[list[Piece], int]:
    """The pieces before a break after so many chunks, and when the next would have come."""
    kept = upto_tokens(pieces, num_chunks)
    left = pieces[len(kept) :]
    return kept, (left or kept or [Piece(0, b"")])[0 if left else -1].at_ns


def _at_once(draft: Draft, fault: Fault, setting: Setting) -> Play:
    """An answer in one JSON value, when its last token is there."""
    at = draft.pieces[-1].at_ns if draft.pieces else 0
    fault = _reached(fault, draft.pieces)
    early, end = cut_by(fault)
    broken = draft.broken_off or fault.error_after_chunks is not None
    if broken:
        return Play([Piece(at, whole(500, encode(error_value(fault.error_message, "internal", 500))))], status=500)
    value = whole_answer(
        setting.voice, draft.chunks, draft.finish, None if fault.no_usage else draft.usage, draft.num_tokens
    )
    _tell(value, timings(draft, setting))
    body = encode(value)
    data = whole(200, body)
    if fault.malformed_after_chunks is not None:
        data = whole(200, body[: len(body) // 2])
    if early is not None:
        return Play([Piece(at, data[: len(data) - len(body) // 2 - 1])], end)
    return Play([Piece(at, data, ChunkKind.CONTENT, draft.num_tokens)])


def timings(draft: Draft, setting: Setting) -> dict[str, Any] | None:
    """The fields by which this flavour tells of its times, where it does."""
    ask, flavour = setting.ask, setting.voice.flavour
    if flavour is not Flavour.LLAMA_CPP and not ask.timings:
        return None
    bringing = [piece for piece in draft.pieces if piece.brings_tokens]
    if not bringing:
        return None
    first, last = bringing[0].at_ns, bringing[-1].at_ns
    cached, computed = setting.cached_tokens, len(ask.words) - setting.cached_tokens
    if flavour is Flavour.LLAMA_CPP:
        told = llama_timings(
            first_ns=first,
            last_ns=last,
            num_tokens=draft.num_tokens,
            cached_tokens=cached,
            computed_tokens=computed,
        )
        return {"timings": told}
    later = draft.num_tokens - bringing[0].num_tokens
    told = paceline_timings(
        queue_ns=setting.queue_ns,
        first_ns=first,
        last_ns=last,
        num_later=later,
        cached_tokens=cached,
        computed_tokens=computed,
    )
    return {"paceline": {"timings": told}}


def _tell(value: dict[str, Any], told: dict[str, Any] | None) -> None:
    for name, more in (told or {}).items():
        value[name] = {**value.get(name, {}), **more}


def _more_headers(piece: Piece, headers: Mapping[str, str]) -> Piece:
    status, rest = piece.data.split(b"\r\n", 1)
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")
    return piece._replace(data=status + b"\r\n" + extra + rest)
