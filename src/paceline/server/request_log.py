"""Every request gets an id, which its answer carries, and if wanted a line in the log. Never what it said."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("paceline.access")
_ID = re.compile(rb"[\w.:-]{1,128}")
HEADER = b"x-request-id"
QUIET = ("/health", "/ready", "/metrics")  # asked every few seconds by machines: logged at debug


class RequestLog:
    """`scope["state"]["request_id"]` is the client's X-Request-Id if that is a plain word, else a new one.
    `scope["state"]["arrival"]` is when its head was complete, `time.monotonic()`. `on_response` is told the path,
    without the prefix of a proxy, and the status as a response begins."""

    def __init__(self, app: ASGIApp, *, access_log: bool) -> None:
        self._app = app
        self._access_log = access_log
        self.on_response: Callable[[str, int], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex.encode()
        began = time.monotonic()
        inner = scope["path"].removeprefix(scope.get("root_path", ""))  # as the application's routes have it
        scope.setdefault("state", {}).update(request_id=request_id.decode(), arrival=began)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.on_response is not None:
                    self.on_response(inner, status)
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id)]
            await send(message)

        try:
            return await self._app(scope, receive, send_with_id)
        finally:
            if self._access_log:
                client = scope.get("client") or ("-", 0)
                ms = (time.monotonic() - began) * 1000
                path = scope.get("raw_path", b"").decode("ascii", "replace")[:200]
                level = logging.DEBUG if inner in QUIET else logging.INFO
                _log.log(
                    level, "%s %s %s %d %.1f ms %s", client[0], scope["method"], path, status, ms, request_id.decode()
                )
