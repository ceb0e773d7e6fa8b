"""A small web server on this machine that can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Site:
    """Files by path, with ranges. `cut_after`: close the connection after so many bytes, once per entry."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.handlers: list[Callable[[BaseHTTPRequestHandler], bool]] = []
        self.cut_after: list[int] = []
        self.statuses: list[int] = []  # answered first, one per request
        self.ranges = True
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, range
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                wanted = self.headers.get("Range")
                site.requests.append((self.command, self.path, wanted))
                if site.statuses:
                    return self.plain(site.statuses.pop(0))
                if any(handler(self) for handler in site.handlers):
                    return None
                content = site.files.get(self.path.partition("?")[0])
                if content is None:
                    return self.plain(404)
                start = 0
                if wanted and site.ranges:
                    start = int(wanted.removeprefix("bytes=").partition("-")[0])
                    if start >= len(content):
                        return self.plain(416, {"Content-Range": f"bytes */{len(content)}"})
                self.send_response(206 if wanted and site.ranges else 200)
                if wanted and site.ranges:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                for name, text in site.headers.get(self.path.partition("?")[0], {}).items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                if body:
                    rest = content[start:]
                    if site.cut_after:
                        self.wfile.write(rest[: site.cut_after.pop(0)])
                        self.close_connection = True
                    else:
                        self.wfile.write(rest)
                return None

            def plain(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
                self.send_response(status)
                for name, text in (headers or {}).items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass  # a client that gave up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()
