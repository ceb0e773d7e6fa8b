"""HTTP/1.1 by hand over an asyncio socket, for what a well-behaved client never does: leave in the middle of a stream,
read slowly, send a body in odd pieces or less of it than announced."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """What came back. `whole`: it came to the end that HTTP announced."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    whole: bool = False
    events: list[bytes] = field(default_factory=list)  # data of server-sent events, if it was a stream of them

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """One connection; requests on it go one after the other. Headers of replies have lower-case names."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int, *, receive_buffer_bytes: int | None = None) -> RawConnection:
        """`receive_buffer_bytes`: a small one lets a slow reader be felt by the server."""
        raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        raw.setblocking(False)
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(raw, (host, port))
            limit = 2**16 if receive_buffer_bytes is None else receive_buffer_bytes
            reader, writer = await asyncio.open_connection(sock=raw, limit=limit)
        except BaseException:
            raw.close()
            raise
        return cls(reader, writer)

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        pieces: Sequence[int] | None = None,
        announce_bytes: int | None = None,
    ) -> None:
        """Send a request. `pieces`: as a chunked body, cut into chunks of these sizes, the rest in one.
        `announce_bytes`: another content-length than the body's."""
        lines = [f"{method} {path} HTTP/1.1", "Host: test"]
        lines += [f"{name}: {value}" for name, value in {"Content-Type": "application/json", **(headers or {})}.items()]
        if pieces is not None:
            lines.append("Transfer-Encoding: chunked")
        elif method != "GET":
            lines.append(f"Content-Length: {len(body) if announce_bytes is None else announce_bytes}")
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        if pieces is None:
            self._writer.write(body)
        else:
            for part in cut(body, pieces):
                self._writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await self._writer.drain()
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> Reply:
        """Status and headers, once they are there. Raises ConnectionError when the server has left."""
        line = await self._reader.readline()
        while line.startswith(b"HTTP/1.1 100"):
            await self._reader.readline()
            line = await self._reader.readline()
        if not line:
            raise ConnectionResetError("closed before an answer")
        headers = {}
        while (header := await self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return Reply(status=int(line.split()[1]), headers=headers)

    async def parts(self, reply: Reply) -> AsyncIterator[bytes]:
        """The body of `reply` as it comes, added to it; `reply.whole` is set at its end."""
        if "content-length" in reply.headers:
            left = int(reply.headers["content-length"])
            while left and (part := await self._reader.read(min(left, 65536))):
                left -= len(part)
                reply.body += part
                yield part
            reply.whole = left == 0
        elif reply.headers.get("transfer-encoding") == "chunked":
            try:
                while size := int(await self._reader.readline(), 16):
                    part = (await self._reader.readexactly(size + 2))[:-2]
                    reply.body += part
                    yield part
                await self._reader.readline()
                reply.whole = True
            except (ValueError, asyncio.IncompleteReadError):
                return
        elif reply.status not in (204, 304):
            reply.body = await self._reader.read()
            reply.whole = True
            yield reply.body

    async def read(self) -> Reply:
        """A whole reply, streamed or not."""
        reply = await self.head()
        async for _ in self.parts(reply):
            pass
        if reply.streams:
            reply.events = sse_events(reply.body)
        return reply

    def reset(self) -> None:
        """Leave without a goodbye (RST)."""
        raw = self._writer.get_extra_info("socket")
        if raw is not None and not self._writer.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        """Leave politely (FIN)."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """`data` in pieces of `sizes`, then the rest; none is empty."""
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    parts.append(data[at:])
    return [part for part in parts if part]


def sse_events(body: bytes) -> list[bytes]:
    """Data of the whole events of a stream of server-sent events, comments left out."""
    found = []
    for block in body.split(b"\n\n")[:-1]:
        data = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if data:
            found.append(b"\n".join(data))
    return found
