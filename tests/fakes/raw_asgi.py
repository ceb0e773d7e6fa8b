"""A client on the inside of the ASGI interface: it can leave at any moment, and read as slowly as it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any


class RawCall:
    """One POST, running in its own task. `reading` cleared makes `send` wait, as a full socket does."""

    def __init__(self, app: Any, path: str, body: Any) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.parts: list[bytes] = []
        self.complete = False
        self.num_waiting_sends = 0
        self.reading = asyncio.Event()
        self.reading.set()
        self._gone = asyncio.Event()
        self._changed = asyncio.Condition()
        self._request: bytes | None = json.dumps(body).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(b"host", b"toy"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("toy", 80),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set():
            return
        self.num_waiting_sends += 1
        await self.reading.wait()
        self.num_waiting_sends -= 1
        assert not self.complete, "a message after the end"
        if message["type"] == "http.response.start":
            assert self.status is None, "a second status line"
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            assert self.status is not None, "a body before the status line"
            self.parts.append(message.get("body", b""))
            self.body += message.get("body", b"")
            self.complete = not message.get("more_body", False)
        async with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    async def until(self, condition: Callable[[RawCall], bool]) -> None:
        """Wait until what has come satisfies `condition`."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: condition(self)), 10.0)

    async def end(self) -> RawCall:
        """Wait for the application to be done with the call."""
        await asyncio.wait_for(self.task, 10.0)
        return self

    @property
    def events(self) -> list[bytes]:
        return [line.removeprefix(b"data: ") for line in self.body.split(b"\n\n") if line]
