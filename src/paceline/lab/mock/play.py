"""A reply as it goes over the wire: bytes, when each is due, and how the connection ends.

Everything here is arithmetic on lists; `player` does the writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from paceline.contracts.artefact import TOKEN_KINDS, ChunkKind
from paceline.lab.mock.script import Fault
from paceline.lab.mock.wording import PING

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}
REASONS |= {408: "Request Timeout", 413: "Content Too Large", 429: "Too Many Requests", 500: "Internal Server Error"}
REASONS |= {503: "Service Unavailable"}
LAST_PIECE = b"0\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MS = 1_000_000  # nanoseconds


class End(Enum):
    KEEP = "keep"  # the next request may come on this connection
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"  # nothing more, and no end


class Piece(NamedTuple):
    """Bytes of the wire and what they are; `kind` is None for what is no event."""

    at_ns: int  # after the reply began
    data: bytes
    kind: ChunkKind | None = None
    num_tokens: int = 0

    @property
    def brings_tokens(self) -> bool:
        return self.kind in TOKEN_KINDS and self.num_tokens > 0


@dataclass(slots=True)
class Play:
    """A whole reply. `pieces` are in order of time."""

    pieces: list[Piece]
    end: End = End.KEEP
    status: int = 200
    cached_tokens: int = 0
    prefilled_ns: int | None = None  # the prompt is in the prefix cache from here on
    hold_ns: int = 0  # the slot is held until here


def frame(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_head(headers: Mapping[str, str]) -> bytes:
    if not headers:
        return _STREAM_HEAD
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")
    return _STREAM_HEAD[:-2] + extra + b"\r\n"


def whole(status: int, body: bytes, headers: Mapping[str, str] | None = None, kind: str = "application/json") -> bytes:
    """A response that is not streamed."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}", f"content-type: {kind}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"content-length: {len(body)}\r\n\r\n")
    return "\r\n".join(lines).encode("latin-1") + body


def with_comments(pieces: Sequence[Piece], every_ms: float) -> list[Piece]:
    """A comment whenever nothing would be said for `every_ms`."""
    every, said = round(every_ms * MS), 0
    found: list[Piece] = []
    for piece in pieces:
        while every > 0 and said + every < piece.at_ns:
            said += every
            found.append(Piece(said, frame(PING)))
        found.append(piece)
        said = piece.at_ns
    return found


def slow_head(head: Piece, every_ms: float) -> list[Piece]:
    """The lines of a head one by one; whatever follows the head stays with its last line."""
    top, rest = head.data.split(b"\r\n\r\n", 1)
    lines = [line + b"\r\n" for line in top.split(b"\r\n")]
    lines[-1] += b"\r\n" + rest
    step = round(every_ms * MS)
    found = [Piece(head.at_ns + step * i, line) for i, line in enumerate(lines)]
    return [*found[:-1], found[-1]._replace(kind=head.kind, num_tokens=head.num_tokens)]


def in_order(pieces: Sequence[Piece]) -> list[Piece]:
    """No piece before the one that stands before it."""
    latest, found = 0, []
    for piece in pieces:
        latest = max(latest, piece.at_ns)
        found.append(piece if piece.at_ns == latest else piece._replace(at_ns=latest))
    return found


def split(pieces: Sequence[Piece], sizes: Sequence[int], gap_ms: float) -> list[Piece]:
    """All bytes cut into lengths `sizes`, in turn, wherever that falls; an event counts with its last byte."""
    gap, found, turn, free_ns = round(gap_ms * MS), [], 0, 0
    for piece in pieces:
        at, rest = max(piece.at_ns, free_ns), piece.data
        parts: list[bytes] = []
        while rest:
            size = max(1, sizes[turn % len(sizes)])
            parts.append(rest[:size])
            rest, turn = rest[size:], turn + 1
        parts = parts or [b""]
        found += [Piece(at + gap * i, part) for i, part in enumerate(parts)]
        found[-1] = found[-1]._replace(kind=piece.kind, num_tokens=piece.num_tokens)
        free_ns = found[-1].at_ns + gap
    return found


def upto_tokens(pieces: Sequence[Piece], num_chunks: int) -> list[Piece]:
    """The pieces before the one that brings tokens for the `num_chunks + 1`-th time."""
    return list(_upto(pieces, num_chunks))


def _upto(pieces: Sequence[Piece], num_chunks: int) -> Iterator[Piece]:
    left = num_chunks
    for piece in pieces:
        if piece.brings_tokens:
            if left == 0:
                return
            left -= 1
        elif left == 0 and piece.kind is not ChunkKind.ROLE:
            return
        yield piece


def end_of_work(pieces: Sequence[Piece]) -> int:
    """When the last tokens come; without tokens, the last piece."""
    for piece in reversed(pieces):
        if piece.brings_tokens:
            return piece.at_ns
    return pieces[-1].at_ns if pieces else 0


def cut_by(fault: Fault) -> tuple[int | None, End]:
    """After how many chunks of tokens the reply ends early, and how."""
    if fault.cut_after_chunks is not None:
        return fault.cut_after_chunks, End.RESET if fault.reset else End.CLOSE
    if fault.hang_after_chunks is not None:
        return fault.hang_after_chunks, End.HANG
    return None, End.KEEP
