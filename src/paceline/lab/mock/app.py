"""The mock's endpoints: which function answers which path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from paceline.errors import ConfigError
from paceline.lab.mock import side
from paceline.lab.mock.asks import CHAT, COMPLETIONS, Refused, read_ask
from paceline.lab.mock.exchange import Exchange
from paceline.lab.mock.http import HttpRequest, MockProtocol
from paceline.lab.mock.loading import script_json
from paceline.lab.mock.log import LogEntry
from paceline.lab.mock.play import whole
from paceline.lab.mock.script import Script
from paceline.lab.mock.state import MockState
from paceline.lab.mock.wording import Voice, encode, error_value

Handler = Callable[[HttpRequest], bytes]


class MockApp:
    """One server: its script at work and its connections. All of it belongs to one event loop."""

    def __init__(self, script: Script) -> None:
        self.state = MockState(script)
        self.connections: set[MockProtocol] = set()
        self._num_connections = 0
        self.stopped = False
        self._own: dict[tuple[str, str], Handler] = {
            ("GET", "/mock/log"): self._show_log,
            ("DELETE", "/mock/log"): self._clear_log,
            ("GET", "/mock/script"): lambda _: _json(msgspec.to_builtins(self.state.script)),
            ("POST", "/mock/script"): self._new_script,
        }

    # --- connections

    def connected(self, connection: MockProtocol) -> int:
        self.connections.add(connection)
        if self.stopped:  # it was accepted just before
            asyncio.get_running_loop().call_soon(connection.abort)
        self._num_connections += 1
        return self._num_connections - 1

    def disconnected(self, connection: MockProtocol) -> None:
        self.connections.discard(connection)

    def use(self, script: Script) -> None:
        """A new script: counts, caches and the log begin anew; replies under way go on as they were."""
        self.state = MockState(script)

    def stop(self) -> None:
        """End all replies and close all connections, those included that come later."""
        self.stopped = True
        self.state.stop()
        for connection in list(self.connections):
            connection.abort()

    # --- requests

    def handle(self, connection: MockProtocol, request: HttpRequest) -> None:
        path, script = request.path, self.state.script
        try:
            own = self._own.get((request.method, path))
            if own is not None:
                connection.answer(own(request))
                return
            if path in script.absent:
                raise Refused(404, f"there is no {path}", "not_found")
            if path in (CHAT, COMPLETIONS) and request.method == "POST":
                self._generate(connection, request, path)
                return
            answer = side.answer(self.state, request.method, unquote(path), request.body, _key(script, request))
        except Refused as refused:
            body = encode(error_value(refused.message, refused.code, refused.status, refused.param))
            answer = whole(refused.status, body)
        except ConfigError as error:
            answer = whole(400, encode(error_value(str(error), error.code, 400)))
        connection.answer(answer)

    def _generate(self, connection: MockProtocol, request: HttpRequest, path: str) -> None:
        state = self.state
        script = state.script
        entry = LogEntry(
            number=state.num_requests,
            path=path,
            connection=connection.number,
            request_id=request.headers.get("x-request-id", ""),
            t_arrival_ns=request.t_arrival_ns,
            t_read_ns=request.t_read_ns,
            num_body_bytes=request.num_bytes,
        )
        state.num_requests += 1
        state.log.append(entry)
        if script.log_bodies:
            entry.body = request.body.decode("utf-8", "replace")
        try:
            entry.key = _key(script, request)
            if script.api_keys and entry.key < 0:
                raise Refused(401, "no API key, or an unknown one", "invalid_api_key")
            ask = read_ask(script, path, request.headers, request.body)
        except Refused as refused:
            entry.status, entry.outcome = refused.status, "done"
            raise
        entry.model, entry.streamed = ask.model, ask.streamed
        entry.prompt_tokens, entry.prompt_sha256 = len(ask.words), ask.prompt_sha256
        entry.num_tokens_asked = -1 if ask.max_tokens is None else ask.max_tokens
        entry.rule, source, service = state.pick(ask, entry.number)
        exchange = Exchange(connection, ask, Voice.of(script, ask), entry, source, service, state.ended)
        state.open.add(exchange)
        connection.begin(exchange)
        exchange.start(log_chunks=script.log_chunks)

    # --- what only a mock has

    def _show_log(self, request: HttpRequest) -> bytes:
        """`?since=N`: entries from that number on."""
        query = parse_qs(request.target.partition(b"?")[2].decode("latin-1"))
        since = query.get("since", ["0"])[0]
        first = int(since) if since.isdecimal() else 0
        return _json({"requests": [entry for entry in self.state.log if entry.number >= first]})

    def _clear_log(self, request: HttpRequest) -> bytes:
        self.state.log.clear()
        return _json({"cleared": True})

    def _new_script(self, request: HttpRequest) -> bytes:
        self.use(script_json(request.body))
        return _json({"taken": True})


def _key(script: Script, request: HttpRequest) -> int:
    """Which of the keys the request has; -1: none of them."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    return script.api_keys.index(given) if given in script.api_keys else -1


def _json(value: Any) -> bytes:
    return whole(200, encode(value))
