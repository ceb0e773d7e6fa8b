"""HTTP/1.1 by `httptools`: requests in order on each connection, one answered at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import httptools

from paceline.lab.mock.exchange import Exchange
from paceline.lab.mock.play import End, whole
from paceline.lab.mock.wording import encode, error_value

if TYPE_CHECKING:
    from paceline.lab.mock.app import MockApp

MAX_BODY_BYTES = 64 << 20


@dataclass(slots=True)
class HttpRequest:
    """`target` has the query; header names are lower case."""

    t_arrival_ns: int
    t_read_ns: int = 0
    method: str = ""
    target: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    keep_alive: bool = True

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode("latin-1")

    @property
    def body(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class MockProtocol(asyncio.Protocol):
    """One connection. `current` is the request being answered."""

    def __init__(self, app: MockApp) -> None:
        self._app = app
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._reading = HttpRequest(0)
        self._waiting: deque[HttpRequest] = deque()
        self._exchange: Exchange | None = None
        self._busy = False
        self._keep_alive = True
        self._idle: asyncio.TimerHandle | None = None
        self.number = 0

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self.number = self._app.connected(self)

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.write(whole(400, encode(error_value(f"this is no HTTP: {error}", "bad_http", 400))))
            self._close()

    def eof_received(self) -> None:
        self._left()

    def connection_lost(self, error: Exception | None) -> None:
        self._left()
        self._app.disconnected(self)
        self._transport = None

    def _left(self) -> None:
        self._waiting.clear()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.client_left()

    # --- the parser

    def on_message_begin(self) -> None:
        self._reading = HttpRequest(self._now_ns)

    def on_url(self, url: bytes) -> None:
        self._reading.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reading.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._reading.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._reading.num_bytes += len(body)
        if self._reading.num_bytes <= MAX_BODY_BYTES:
            self._reading.parts.append(body)

    def on_message_complete(self) -> None:
        request = self._reading
        request.method = self._parser.get_method().decode()
        request.keep_alive = self._parser.should_keep_alive()
        request.t_read_ns = time.monotonic_ns()
        if self._busy:
            self._waiting.append(request)
        else:
            self._answer(request)

    # --- answers

    def _answer(self, request: HttpRequest) -> None:
        self._busy, self._keep_alive = True, request.keep_alive
        if self._idle is not None:
            self._idle.cancel()
        if request.num_bytes > MAX_BODY_BYTES:
            self.answer(whole(413, encode(error_value("the body is too large", "body_too_large", 413))))
            return
        self._app.handle(self, request)

    def answer(self, data: bytes) -> None:
        """A whole response at once."""
        self.write(data)
        self.finished(End.KEEP)

    def begin(self, exchange: Exchange) -> None:
        """A reply that takes its time. Called before it starts."""
        self._exchange = exchange

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finished(self, end: End) -> None:
        self._exchange = None
        self._busy = bool(self._waiting)
        if end is End.RESET:
            self._reset()
        elif end is End.CLOSE or not self._keep_alive:
            self._close()
        elif not self._busy and self._app.state.script.keep_alive_s is not None:
            self._idle = asyncio.get_running_loop().call_later(self._app.state.script.keep_alive_s, self._close)
        elif self._waiting:
            asyncio.get_running_loop().call_soon(self._answer, self._waiting.popleft())

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        import socket
        import struct

        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:  # no lingering: the kernel sends RST, not FIN
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def abort(self) -> None:
        """The server stops."""
        if self._transport is not None:
            self._transport.abort()
