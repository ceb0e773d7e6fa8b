"""A load of streams in a process of its own: `python -m tests.fakes.sse_load JSON` prints one JSON line.

Opens `streams` connections, posts `body` on each (`{i}` in its text is the stream's number), and counts events and
tokens as they come, with as little work for each as Python allows: the server beside it is what is measured. Options:
host, port, path, body, streams, core (pin to it), headers, open_per_s (0: as fast as they go).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from typing import Any

_TOKENS = re.compile(rb'"num_tokens": ?(\d+)')


class Stream(asyncio.Protocol):
    """One request and the tally of its stream."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self._head = True
        self.status = 0
        self.events = 0
        self.tokens = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.sent_s = 0.0
        self.errors: list[str] = []
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.sent_s = time.monotonic()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self._tail + data
        if self._head:
            head, found, rest = data.partition(b"\r\n\r\n")
            if not found:
                self._tail = data
                return
            self._head = False
            self.status = int(head.split(None, 2)[1])
            data = rest
        cut = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        whole, self._tail = data[:cut], data[cut:]
        tokens = sum(map(int, _TOKENS.findall(whole)))
        self.events += whole.count(b"data: {")
        self.tokens += tokens
        if tokens:
            self.last_s = now
            self.first_s = now if self.first_s is None else self.first_s
        if b'"error"' in whole or (self.status != 200 and data):
            self.errors.append(data[:300].decode("utf-8", "replace"))
        if b"data: [DONE]" in whole or (self.status != 200 and data):
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.errors.append(f"closed before [DONE]: {error}; {self._tail[:300]!r}")
            self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self._transport.close()


def request_bytes(options: dict[str, Any], index: int) -> bytes:
    body = json.dumps(options["body"]).replace("{i}", str(index)).encode()
    head = [f"POST {options['path']} HTTP/1.1", "Host: test", "Content-Type: application/json"]
    head += [f"{name}: {value}" for name, value in options.get("headers", {}).items()]
    head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def run(options: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    begin = time.monotonic()
    streams: list[Stream] = []
    gap_s = 1 / options["open_per_s"] if options.get("open_per_s") else 0.0

    async def open_one(index: int) -> None:
        _, stream = await loop.create_connection(
            lambda: Stream(request_bytes(options, index)), options["host"], options["port"]
        )
        streams.append(stream)

    for index in range(options["streams"]):
        await open_one(index)
        if gap_s:
            await asyncio.sleep(gap_s)
    opened_s = time.monotonic() - begin
    await asyncio.gather(*(stream.done for stream in streams))
    first = min((s.first_s for s in streams if s.first_s is not None), default=begin)
    last = max((s.last_s for s in streams if s.last_s is not None), default=begin)
    return {
        "streams": len(streams),
        "opened_s": opened_s,
        "wall_s": time.monotonic() - begin,
        "token_wall_s": last - first,
        "events": sum(s.events for s in streams),
        "tokens": [s.tokens for s in streams],
        "ttft_s": [s.first_s - s.sent_s for s in streams if s.first_s is not None],
        "tpot_s": [
            (s.last_s - s.first_s) / (s.tokens - 1)
            for s in streams
            if s.first_s is not None and s.last_s is not None and s.tokens > 1
        ],
        "errors": [e for s in streams for e in s.errors][:20],
        "num_errors": sum(bool(s.errors) for s in streams),
    }


def main() -> int:
    options = json.loads(sys.argv[1])
    if options.get("core") is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options["core"]})
    print(json.dumps(asyncio.run(run(options))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
