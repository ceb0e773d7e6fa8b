"""Server-sent events over ASGI, written for thousands of open streams: no task and no timer per event.

The status line goes out with the first event, so a request that fails before has a proper HTTP status. A stream that
has had nothing to say for `PING_S` gets a comment, `: ping`, which clients skip; so proxies and clients can tell a long
queue from a dead server. Every write waits for the socket: a slow reader slows its own stream and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from starlette.types import Send

PING_S = 15.0
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
# Characters that JSON leaves as they are and that some readers of lines take for the end of one.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))

encode = msgspec.json.Encoder().encode


def encode_text(text: str) -> bytes:
    """A JSON string, on one line for every reader."""
    data = encode(text)
    return data if text.isascii() else one_line(data)


def one_line(data: bytes) -> bytes:
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def event(value: object) -> bytes:
    """One event with a JSON value."""
    return b"data: " + one_line(encode(value)) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """One event that also says its name."""
    return b"event: " + name.encode() + b"\n" + event(value)


class EventStream:
    """One response. `send` and `end` are awaited one after the other, by one task."""

    def __init__(self, send: Send, headers: Mapping[str, str] | None = None, *, ping_s: float = PING_S) -> None:
        self._send = send
        self._headers = [
            *_HEADERS,
            *((k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items()),
        ]
        self._loop = asyncio.get_running_loop()
        self._ping_s = ping_s
        self._last = self._loop.time()
        self._ping: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(ping_s, self._tick)
        self.begun = False  # the status line is out

    async def send(self, data: bytes) -> None:
        """Write events; returns when the socket has taken them."""
        if self._ping is not None:
            await self._ping
        if not self.begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._last = self._loop.time()

    async def end(self, data: bytes = b"") -> None:
        """Write the last events and end the response."""
        self.close()
        if self._ping is not None:
            await self._ping
        if not self.begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def close(self) -> None:
        """No more pings. Idempotent."""
        self._timer.cancel()

    async def _begin(self) -> None:
        self.begun = True
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    def _tick(self) -> None:
        quiet_s = self._loop.time() - self._last
        if quiet_s >= self._ping_s and self._ping is None:
            self._ping = self._loop.create_task(self._send_ping())
            quiet_s = 0.0
        self._timer = self._loop.call_later(max(0.05, self._ping_s - quiet_s), self._tick)

    async def _send_ping(self) -> None:
        try:
            if not self.begun:
                await self._begin()
            await self._send({"type": "http.response.body", "body": PING, "more_body": True})
            self._last = self._loop.time()
        finally:
            self._ping = None
