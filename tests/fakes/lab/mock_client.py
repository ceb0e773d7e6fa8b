"""A blocking HTTP client for tests of the mock: one request on one socket, raw bytes and events with their times."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 20.0  # only against hangs


@dataclass
class Seen:
    """What came back. `whole`: it came to the end that HTTP announced."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    reset: bool = False
    reads: list[bytes] = field(default_factory=list)  # as recv gave them
    t_send_ns: int = 0
    t_end_ns: int = 0

    @property
    def lines(self) -> list[str]:
        return [part.decode() for part in self.body.split(b"\n\n") if part]

    @property
    def events(self) -> list[Any]:
        """Data of the events, [DONE] as "[DONE]", what is no JSON as bytes."""
        found: list[Any] = []
        for line in self.lines:
            if not line.startswith("data: "):
                continue
            data = line.removeprefix("data: ")
            try:
                found.append(data if data == "[DONE]" else json.loads(data))
            except ValueError:
                found.append(data.encode())
        return found

    @property
    def text(self) -> str:
        """Content of all chunks."""
        parts = []
        for event in self.events:
            for choice in event.get("choices", ()) if isinstance(event, dict) else ():
                parts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        return "".join(parts)

    @property
    def finish_reasons(self) -> list[str]:
        choices = [c for event in self.events if isinstance(event, dict) for c in event.get("choices", ())]
        return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]

    @property
    def usage(self) -> dict[str, Any] | None:
        found = [event["usage"] for event in self.events if isinstance(event, dict) and event.get("usage")]
        return found[-1] if found else None

    def json(self) -> Any:
        return json.loads(self.body)


def chat_body(words: str = "one two three", max_tokens: int | None = 8, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": words}], "stream": True}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return body | {"stream_options": {"include_usage": True}} | more


def request_bytes(url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"host: {urlsplit(url).netloc}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"content-length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class Client:
    """One connection."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        self.url = url
        self.socket = socket.create_connection((where.hostname, where.port), timeout=TIMEOUT_S)
        self._left = b""

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None) -> Seen:
        seen = Seen(t_send_ns=time.monotonic_ns())
        self.socket.sendall(request_bytes(self.url, method, path, body, headers))
        return seen

    def ask(self, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None) -> Seen:
        """Send, and read to the end."""
        return self.finish(self.send(path, body, method=method, headers=headers))

    def read_some(self) -> bytes:
        return self.socket.recv(65536)

    def finish(self, seen: Seen) -> Seen:
        data = self._left
        while not self._parse(seen, data):
            try:
                more = self.read_some()
            except ConnectionResetError:
                seen.reset = True
                break
            if not more:
                break
            seen.reads.append(more)
            data += more
        seen.t_end_ns = time.monotonic_ns()
        return seen

    def _parse(self, seen: Seen, data: bytes) -> bool:
        head, sep, rest = data.partition(b"\r\n\r\n")
        if not sep:
            return False
        status, *lines = head.decode("latin-1").split("\r\n")
        seen.status = int(status.split()[1])
        seen.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if "content-length" in seen.headers:
            length = int(seen.headers["content-length"])
            seen.body, self._left = rest[:length], rest[length:]
            seen.whole = len(rest) >= length
            return seen.whole
        seen.body = b""
        while rest:
            size, sep, after = rest.partition(b"\r\n")
            if not sep or len(after) < int(size, 16) + 2:
                return False
            seen.body += after[: int(size, 16)]
            rest = after[int(size, 16) + 2 :]
            if size == b"0":
                self._left, seen.whole = rest, True
                return True
        return False


def ask(url: str, path: str = "/v1/chat/completions", body: Any = None, **more: Any) -> Seen:
    """One request on a connection of its own. Without a body: a streamed chat of 8 tokens, for POST."""
    if body is None and more.get("method", "POST") == "POST":
        body = chat_body()
    with Client(url) as client:
        return client.ask(path, body, **more)


def get(url: str, path: str) -> Seen:
    return ask(url, path, method="GET")
