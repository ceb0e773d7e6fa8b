"""Connections kept alive between requests, the last used first, and the head that goes before each body."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

from paceline.contracts.slo import Outcome
from paceline.lab.load.connection import Attempt, Connection
from paceline.lab.load.target import Target

MAX_IDLE_NS = 2_000_000_000  # servers close idle connections after some seconds; a request must not meet that


class Pool:
    """Of one event loop and one target. Opens as many connections as there are requests at once."""

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop) -> None:
        self.peak = 0  # connections open at once
        self.clock: Callable[[], int] = time.monotonic_ns  # ns; the driver sets it to count from the start
        self._loop = loop
        self._target = target
        self._address = target.address
        self._tls = target.ssl_context()
        self._host = self._address.host  # an address once `resolve` was called
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._heads: dict[tuple[str, str | None, bool], bytes] = {}
        self._opening: set[asyncio.Task[None]] = set()

    async def resolve(self) -> None:
        """Look the name up once, so that no request waits for it: the first of its addresses that answers is used.
        Raises OSError when none does."""
        address = self._address
        found = await self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        error: OSError | None = None
        for entry in found:
            try:
                transport, _ = await self._loop.create_connection(asyncio.Protocol, str(entry[4][0]), address.port)
            except OSError as failed:
                error = failed
                continue
            transport.close()
            self._host = str(entry[4][0])
            return
        raise error or OSError(f"no address for {address.host}")

    def send(self, attempt: Attempt) -> None:
        """On an idle connection at once, or on a new one as soon as it is there."""
        while self._idle:
            conn = self._idle.pop()
            if conn.usable and self.clock() - conn.idle_since < MAX_IDLE_NS:
                conn.send(attempt, self._head(attempt))
                return
            conn.drop()
        task = self._loop.create_task(self._connect(attempt))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def close(self) -> None:
        for conn in list(self._open):
            conn.drop(abort=True)
        for task in self._opening:
            task.cancel()

    async def _connect(self, attempt: Attempt) -> None:
        try:
            _, conn = await self._loop.create_connection(
                self._new,
                self._host,
                self._address.port,
                ssl=self._tls,
                server_hostname=self._address.host if self._tls is not None else None,
            )
        except OSError as error:  # ssl's errors are among them
            attempt.finish(Outcome.HTTP_ERROR, f"connect: {error.strerror or type(error).__name__}", self.clock())
            return
        self._open.add(conn)
        self.peak = max(self.peak, len(self._open))
        if attempt.outcome is not None:  # given up meanwhile
            self._idle_again(conn)
            return
        conn.send(attempt, self._head(attempt))

    def _new(self) -> Connection:
        return Connection(self.clock, self._idle_again, self._open.discard)

    def _idle_again(self, conn: Connection) -> None:
        conn.idle_since = self.clock()
        self._idle.append(conn)

    def _head(self, attempt: Attempt) -> bytes:
        """Everything before the body."""
        job = attempt.job
        key = (job.path, job.record.tenant, job.record.streamed)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._make_head(*key)
        return head % len(job.body)

    def _make_head(self, path: str, tenant: str | None, streamed: bool) -> bytes:
        headers = {
            "Host": self._address.authority,
            "User-Agent": "paceline-lab",
            "Accept": "text/event-stream" if streamed else "application/json",
            "Content-Type": "application/json",
            **self._target.headers,
        }
        api_key = self._target.key_of(tenant)
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        lines = [f"POST {self._address.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        text = "\r\n".join(lines).replace("%", "%%") + "\r\nContent-Length: %d\r\n\r\n"
        return text.encode("latin-1")
