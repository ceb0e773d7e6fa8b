"""Lines of JSON in gzip, written so that a crash costs at most the last batch.

Each `flush` closes a gzip member; members one after the other are one gzip file. A reader takes all whole lines and
says if the end was cut off.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from paceline.errors import LabError

T = TypeVar("T")

MAX_LINE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 8 << 30  # unpacked: a few kilobytes of zeros must not fill the memory
_CHUNK = 1 << 20
_BATCH_BYTES = 1 << 20
_LEVEL = 4


class LineWriter:
    """Appends values to `path`, one JSON line each. Safe to use again on a file that a crash left behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")
        self._encoder = msgspec.json.Encoder()
        self._waiting = bytearray()

    def append(self, value: Any) -> None:
        self._waiting += self._encoder.encode(value)
        self._waiting += b"\n"
        if len(self._waiting) >= _BATCH_BYTES:
            self.flush()

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            self.append(value)

    def flush(self) -> None:
        """What was appended is on its way to the disk: only a crash of the machine may lose it."""
        if self._waiting:
            # mtime 0: equal lines give equal bytes
            self._file.write(gzip.compress(bytes(self._waiting), compresslevel=_LEVEL, mtime=0))
            self._waiting.clear()
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LineReader(Generic[T]):
    """Iterates over the values of `path`. `cut` says afterwards whether the file ended in the middle of something."""

    def __init__(self, path: Path, kind: type[T], *, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.path = path
        self.cut = False
        self._decoder = msgspec.json.Decoder(kind)
        self._max_total = max_total_bytes

    def __iter__(self) -> Iterator[T]:
        rest = b""
        number = 0
        for piece in self._unpacked():
            *lines, rest = (rest + piece).split(b"\n") if rest else piece.split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise LabError(
                    f"line {number + 1} of {self.path} is too long", expected=f"at most {MAX_LINE_BYTES} bytes"
                )
            for line in lines:
                number += 1
                if line:
                    yield self._decode(line, number)
        if rest:
            self.cut = True  # a line without its end: never decoded, for half a record is none

    def _decode(self, line: bytes, number: int) -> T:
        try:
            return self._decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise LabError(
                f"line {number} of {self.path} is not what it should be",
                seen=str(error),
                expected="a line that this version wrote",
                fix="restore the file, or run again",
            ) from None

    def _unpacked(self) -> Iterator[bytes]:
        total = 0
        with self.path.open("rb") as file:
            unpacker = zlib.decompressobj(wbits=31)
            fresh = True
            while raw := file.read(_CHUNK):
                while raw:
                    try:
                        piece = unpacker.decompress(raw, _CHUNK)
                    except zlib.error:
                        if fresh and total == 0:
                            raise LabError(
                                f"{self.path} is no gzip file", fix="restore the file, or run again"
                            ) from None
                        self.cut = True
                        return
                    fresh = False
                    total += len(piece)
                    if total > self._max_total:
                        raise LabError(f"{self.path} unpacks to more than {self._max_total} bytes", fix="split the run")
                    if piece:
                        yield piece
                    if unpacker.eof:
                        raw = unpacker.unused_data
                        unpacker = zlib.decompressobj(wbits=31)
                        fresh = True
                    else:
                        raw = unpacker.unconsumed_tail
            if not fresh:
                self.cut = True
