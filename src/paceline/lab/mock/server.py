"""The mock as a server: on a thread of this process, or a whole process of its own (`process`)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from paceline.errors import LabError
from paceline.lab.mock.app import MockApp
from paceline.lab.mock.http import MockProtocol
from paceline.lab.mock.loading import check_script, load_script
from paceline.lab.mock.log import LogEntry, wait_for_ends
from paceline.lab.mock.loops import new_loop
from paceline.lab.mock.script import Script

START_S = 10.0


class MockServer:
    """A mock on a thread of its own, with an event loop of its own.

        with MockServer(Script(service=Service(ttft_ms=50, tpot_ms=10))) as mock:
            ...                      # mock.url
            truth = mock.log()

    It shares the interpreter with its caller: a caller that is busy for long makes it late (the log says by how much).
    Where that matters, `MockProcess` has the same face.
    """

    def __init__(
        self, script: Script | Mapping[str, Any] | None = None, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._script = _checked(script)
        self._host = host
        self._port = port
        self._app: MockApp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.url = ""

    def start(self) -> str:
        """Serve. The base URL, without /v1. LabError if the port cannot be had."""
        if self._thread is not None:
            raise LabError("this mock was started before", fix="make another MockServer")
        self._thread = threading.Thread(target=self._run, name="paceline-mock", daemon=True)
        self._thread.start()
        if not self._started.wait(START_S) or self._failure is not None:
            raise LabError("the mock server did not start", seen=self._failure)
        return self.url

    def stop(self) -> None:
        """Close every connection and end the thread. Idempotent."""
        if self._thread is None or not self._thread.is_alive():
            return
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_S)

    def log(self) -> list[LogEntry]:
        """What it saw so far, in order of arrival. Entries of open requests still change."""
        return list(self._running.state.log)

    def wait_for(self, num_requests: int, *, timeout_s: float = 10.0) -> list[LogEntry]:
        """The log, once so many requests have ended. LabError if they do not."""
        return wait_for_ends(self.log, num_requests, timeout_s=timeout_s, pause_s=0.002)

    def use(self, script: Script | Mapping[str, Any]) -> None:
        """Another script from now on; counts, caches and the log begin anew."""
        new = _checked(script)
        assert self._loop is not None
        taken = threading.Event()

        def swap() -> None:
            self._running.use(new)
            taken.set()

        self._loop.call_soon_threadsafe(swap)
        if not taken.wait(START_S):
            raise LabError("the mock does not answer")

    @property
    def _running(self) -> MockApp:
        if self._app is None:
            raise LabError("the mock is not running", fix="call start()")
        return self._app

    def _run(self) -> None:
        loop = new_loop()
        try:
            loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            loop.close()
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._app = app = MockApp(self._script)
        server = await listen(app, self._host, self._port)
        self.url = url_of(server)
        self._started.set()
        try:
            await self._stopping.wait()
        finally:
            await shut(server, app)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


async def listen(app: MockApp, host: str, port: int) -> asyncio.Server:
    """Take connections. LabError if the port is not free."""
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: MockProtocol(app), host, port, backlog=4096, reuse_address=True
        )
    except OSError as error:
        raise LabError("the mock cannot listen", seen=f"{host}:{port}: {error.strerror}", fix="another port") from None


async def shut(server: asyncio.Server, app: MockApp) -> None:
    """Take no more connections, and close those there are."""
    loop = asyncio.get_running_loop()
    app.stop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        # asyncio fails on a connection that it has accepted and not yet made when the server closes: let it come first
        for taken in server.sockets:
            loop.remove_reader(taken.fileno())
        await _turns(4)
    server.close()
    await _turns(4)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def url_of(server: asyncio.Server) -> str:
    """Base URL of the first socket."""
    name = server.sockets[0].getsockname()
    host = f"[{name[0]}]" if server.sockets[0].family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


def _checked(script: Script | Mapping[str, Any] | None) -> Script:
    if script is None:
        return Script()
    if isinstance(script, Script):
        check_script(script)
        return script
    return load_script(script)
