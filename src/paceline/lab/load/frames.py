"""What the parent and its load processes say to each other over pipes: a kind, a length, and MessagePack.

Records stay bytes in the parent until the load is over, so that decoding them takes no time from the server under test.
"""

from __future__ import annotations

from enum import IntEnum
from typing import IO, Any

import msgspec

from paceline.lab.load.options import LoadOptions
from paceline.lab.load.target import Target

HEADER_BYTES = 5


class Kind(IntEnum):
    # to a load process
    SETUP = 1
    JOB = 2
    READY = 3  # say so when everything before this has been read
    START = 4
    END = 5  # no more jobs but later turns
    TURN = 6  # a later turn, rendered
    # from it
    IS_READY = 10
    PROGRESS = 11
    RECORD = 12
    ASK = 13  # for a later turn
    DONE = 14
    FAILED = 15


class Setup(msgspec.Struct, kw_only=True):
    target: Target
    options: LoadOptions
    worker: int
    span_ns: int
    cap: int | None = None


class Start(msgspec.Struct):
    t0_ns: int  # monotonic: one clock for all processes of a host


class AskTurn(msgspec.Struct):
    id: int  # of the request
    history: list[dict[str, Any]]


class Failed(msgspec.Struct):
    """The process cannot do its part: an error of ours (config, lab), or a fault."""

    message: str


_encode = msgspec.msgpack.Encoder().encode


def frame(kind: Kind, value: object = None) -> bytes:
    data = _encode(value)
    return bytes((kind,)) + len(data).to_bytes(4, "big") + data


def read_frame(stream: IO[bytes]) -> tuple[Kind, bytes] | None:
    """The next one from a blocking stream; None at its end."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    size = int.from_bytes(header[1:], "big")
    data = stream.read(size)
    return (Kind(header[0]), data) if len(data) == size else None


class FrameSplitter:
    """Frames out of bytes that arrive in any pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        rest = self._rest
        rest += data
        found, at = [], 0
        while len(rest) - at >= HEADER_BYTES:
            size = int.from_bytes(rest[at + 1 : at + HEADER_BYTES], "big")
            end = at + HEADER_BYTES + size
            if len(rest) < end:
                break
            found.append((Kind(rest[at]), bytes(rest[at + HEADER_BYTES : end])))
            at = end
        del rest[:at]
        return found
