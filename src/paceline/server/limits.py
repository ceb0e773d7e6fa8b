"""What a client may not do to the server: too many connections, endless or slow heads, endless or slow bodies.

`guarded_protocol` watches the bytes of a connection before there is a request; `BodyLimit` reads a body whole, within
its bounds, before the application sees the request. Both answer in the API's error form.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from paceline.config.server import ServerConfig
from paceline.server.errors import BodyTooLargeError, HttpError, RequestTimeoutError, error_bytes, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("paceline.server")

MAX_HEAD_BYTES = 64 << 10  # of a request's line and headers
_LINGER_S = 5.0  # a refused body may go on this long after its time before the connection is cut


class TooManyConnectionsError(HttpError):
    status = 503
    code = "too_many_connections"


class HeadTooLargeError(HttpError):
    status = 431
    code = "head_too_large"


class SlowHeadError(RequestTimeoutError):
    code = "slow_request"


class BadHttpError(HttpError):
    code = "bad_http"


def guarded_protocol(settings: ServerConfig) -> type[HttpToolsProtocol]:
    """uvicorn's protocol for HTTP/1.1 with bounds on the number of connections and on the time and size of a head."""

    class Guarded(HttpToolsProtocol):
        _in_head = False
        _head_bytes = 0
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                limit = f"at most {settings.max_connections} open ones"
                error = TooManyConnectionsError(
                    "too many connections", expected=limit, fix="try again in a moment", headers={"Retry-After": "1"}
                )
                return self._refuse(error)
            self._await_head()
            return None

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self._in_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                    expected = f"at most {MAX_HEAD_BYTES} bytes"
                    self._refuse(HeadTooLargeError("the head of the request is too long", expected=expected))

        def send_400_response(self, msg: str) -> None:
            self._refuse(BadHttpError("this is not HTTP/1.1", expected="a well-formed HTTP/1.1 request"))

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if not self._in_head:
                self._await_head()

        def on_headers_complete(self) -> None:
            self._in_head, self._head_bytes = False, 0
            self._disarm()
            # the body's time is kept by BodyLimit, which can answer; this is for what goes on after its answer
            self._timer = self.loop.call_later(settings.body_timeout_s + _LINGER_S, self.transport.close)
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._disarm()
            super().on_message_complete()

        def _await_head(self) -> None:
            self._in_head, self._head_bytes = True, 0
            self._disarm()
            self._timer = self.loop.call_later(settings.header_timeout_s, self._slow_head)

        def _slow_head(self) -> None:
            if not self.transport.is_closing():
                expected = f"all of it within {settings.header_timeout_s:g} s"
                self._refuse(SlowHeadError("the head of the request did not come in time", expected=expected))

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, error: HttpError) -> None:
            """Answer and hang up, unless an answer to an earlier request is being sent: then only hang up."""
            self._disarm()
            if self.cycle is None or self.cycle.response_complete:
                body = error_bytes(error)
                head = [
                    STATUS_LINE[error.status],
                    b"content-type: application/json\r\nconnection: close\r\n",
                    b"content-length: %d\r\n" % len(body),
                    *(f"{name}: {value}\r\n".encode("latin-1") for name, value in error.headers.items()),
                ]
                self.transport.write(b"".join([*head, b"\r\n", body]))
            self.transport.close()

    return Guarded


class BodyLimit:
    """Reads each body whole: at most `max_bytes`, within `timeout_s`. A declared length that is too long is refused
    before anything is read; what still comes of a refused body is thrown away by the protocol."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            return await self._app(scope, receive, send)
        declared = _header(scope, b"content-length")
        if declared is not None and int(declared) > self._max_bytes:
            return await error_response(self._too_large(int(declared)))(scope, receive, send)
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(receive)
        except TimeoutError:
            expected = f"all of it within {self._timeout_s:g} s"
            error = RequestTimeoutError("the body of the request did not come in time", expected=expected)
            error.headers["Connection"] = "close"
            return await error_response(error)(scope, receive, send)
        except BodyTooLargeError as error:
            return await error_response(error)(scope, receive, send)
        if body is None:
            return None  # the client has left
        first: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Message:
            nonlocal first
            if first is not None:
                message, first = first, None
                return message
            return await receive()

        return await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._max_bytes:
                raise self._too_large(size)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self, size: int) -> BodyTooLargeError:
        return BodyTooLargeError(
            "the request's body is too long",
            seen=f"{size} bytes or more",
            expected=f"at most {self._max_bytes} bytes (max_body_bytes)",
            fix="send less at once",
        )


def _has_body(scope: Scope) -> bool:
    return _header(scope, b"content-length") not in (None, b"0") or _header(scope, b"transfer-encoding") is not None


def _header(scope: Scope, name: bytes) -> Any:
    return next((value for key, value in scope["headers"] if key == name), None)
