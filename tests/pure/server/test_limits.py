"""Bodies within their bounds, request ids, and the gate before the application; without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from paceline.server.health import Gate
from paceline.server.limits import BodyLimit
from paceline.server.request_log import RequestLog
from paceline.server.session import EngineSession


class Exchange:
    """One request to an ASGI app: what it receives (then silence, or the client's leaving) and what it sends."""

    def __init__(self, *parts: bytes, headers: dict[str, str] | None = None, path: str = "/x", leave: bool = False):
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
        }
        self.incoming: list[dict[str, Any]] = [
            {"type": "http.request", "body": part, "more_body": leave or i < len(parts) - 1}
            for i, part in enumerate(parts)
        ]
        self.leave = leave
        self.num_received = 0
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        self.num_received += 1
        if self.incoming:
            return self.incoming.pop(0)
        if self.leave:
            return {"type": "http.disconnect"}
        await asyncio.sleep(60.0)
        raise AssertionError("nothing more comes")

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def run(self, app: Callable[..., Any]) -> Exchange:
        asyncio.run(app(self.scope, self.receive, self.send))
        return self

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def code(self) -> str:
        return str(json.loads(b"".join(m.get("body", b"") for m in self.sent[1:]))["error"]["code"])


async def echo(_: Any, receive: Any, send: Any) -> None:
    """Answers with the body's length and how many messages it came in."""
    size, count, more = 0, 0, True
    while more:
        message = await receive()
        size, count, more = size + len(message["body"]), count + 1, message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{size} {count}".encode()})


LIMITED = BodyLimit(echo, max_bytes=10, timeout_s=0.05)
CHUNKED = {"transfer-encoding": "chunked"}


def test_a_body_of_exactly_the_limit_passes_in_one_piece() -> None:
    found = Exchange(b"12345", b"", b"67890", headers=CHUNKED).run(LIMITED)
    assert found.sent[1]["body"] == b"10 1"


def test_a_declared_length_is_refused_unread() -> None:
    found = Exchange(b"x" * 11, headers={"content-length": "11"}).run(LIMITED)
    assert (found.status, found.code, found.num_received) == (413, "body_too_large", 0)


def test_one_byte_too_many_is_refused_where_no_length_was_declared() -> None:
    found = Exchange(b"12345", b"678901", b"never read", headers=CHUNKED).run(LIMITED)
    assert (found.status, found.code, found.num_received) == (413, "body_too_large", 2)


def test_a_body_that_stops_coming_is_refused() -> None:
    exchange = Exchange(b"12", headers={"content-length": "5"})
    exchange.incoming[0]["more_body"] = True
    found = exchange.run(LIMITED)
    assert (found.status, found.headers["connection"]) == (408, "close")


def test_a_client_that_leaves_within_its_body_gets_no_answer() -> None:
    assert Exchange(b"12", headers={"content-length": "5"}, leave=True).run(LIMITED).sent == []


@pytest.mark.parametrize("headers", [{}, {"content-length": "0"}])
def test_a_request_without_a_body_is_passed_on_unread(headers: dict[str, str]) -> None:
    found = Exchange(b"", headers=headers).run(LIMITED)
    assert (found.status, found.num_received) == (200, 1)


@pytest.mark.parametrize(
    ("given", "kept"), [("mine-7.a:b", True), ("two words", False), ("", False), ("x" * 129, False), ("a\r\nb", False)]
)
def test_a_plain_request_id_is_kept_and_any_other_replaced(given: str, kept: bool) -> None:
    app = RequestLog(echo, access_log=False)
    statuses: list[tuple[str, int]] = []
    app.on_response = lambda path, status: statuses.append((path, status))
    found = Exchange(b"", headers={"x-request-id": given}).run(app)
    assert (found.headers["x-request-id"] == given) is kept
    assert found.scope["state"]["request_id"] == found.headers["x-request-id"]
    assert found.scope["state"]["arrival"] > 0
    assert statuses == [("/x", 200)]


def test_responses_are_told_without_the_prefix_of_a_proxy() -> None:
    app = RequestLog(echo, access_log=False)
    paths: list[str] = []
    app.on_response = lambda path, _status: paths.append(path)
    exchange = Exchange(b"", path="/llm/v1/completions")
    exchange.scope["root_path"] = "/llm"
    exchange.run(app)
    assert paths == ["/v1/completions"]


def test_the_gate_answers_for_the_application_until_it_is_there_and_while_it_drains() -> None:
    async def main() -> None:
        session = EngineSession()
        session.starting("weights")
        gate = Gate(session)

        async def ask(path: str) -> Exchange:
            exchange = Exchange(b"", path=path)
            await gate(exchange.scope, exchange.receive, exchange.send)
            return exchange

        assert (await ask("/health")).status == 200
        assert (await ask("/ready")).status == 503
        early = await ask("/v1/models")
        assert (early.status, early.code) == (503, "engine")
        assert int(early.headers["retry-after"]) >= 1
        gate.open(echo)
        assert (await ask("/v1/models")).status == 200
        session.draining = True
        for path, status in (
            ("/v1/chat/completions", 503),
            ("/tokenize", 503),
            ("/health", 200),
            ("/v1/internal/config", 200),
        ):
            assert (await ask(path)).status == status
        session.close()
        session.end_threads()

    asyncio.run(main())
