"""Keeps an engine running behind a session: starts it, notices its death or a stuck step, starts it anew, ends it.

Engines are started and ended in one thread of their own, so that the loop never waits for a process, and so that they
keep the niceness this thread had when it was made.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from paceline.errors import EngineDeadError, EngineError, PacelineError
from paceline.server.session import EngineProcess, EngineSession

_log = logging.getLogger("paceline.server")
T = TypeVar("T")
_CLOSE_S = 5.0

OnPhase = Callable[[str], None]
GiveUp = Callable[[], bool]
Spawn = Callable[[OnPhase, GiveUp], EngineProcess]
"""Starts an engine and waits until it is ready. Tells the names of phases as they begin; asked often whether to give
up, it then raises EngineError."""


@dataclass(frozen=True)
class RestartPolicy:
    """When and how often. After the k-th death in a row comes a pause of first_s * 2 ** (k - 1), at most longest_s."""

    restart: bool = True
    max_restarts: int = 5  # deaths in a row
    first_s: float = 0.5
    longest_s: float = 30.0
    settled_s: float = 60.0  # after this long in service, deaths are counted anew

    def pause_s(self, deaths: int) -> float:
        return min(self.longest_s, self.first_s * 2.0 ** (deaths - 1))


class EngineThread:
    """Runs blocking calls, one at a time, in a daemon thread: a start that hangs must not keep the process."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="paceline-engines", daemon=True).start()

    async def call(self, run: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(value)  # type: ignore[arg-type]  # T itself may be None

        def work() -> None:
            value, failure = None, None
            try:
                value = run()
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, value, failure)

        self._work.put(work)
        return await done

    def _run(self) -> None:
        while True:
            self._work.get()()


class Supervisor:
    """`run` serves until the engine is lost for good, and then raises why; `close` ends it, and `run` returns."""

    def __init__(
        self,
        session: EngineSession,
        spawn: Spawn,
        thread: EngineThread,
        policy: RestartPolicy,
        *,
        stall_limit_s: float,
        on_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._spawn = spawn
        self._thread = thread
        self._policy = policy
        self._stall_limit_s = stall_limit_s
        self._on_up = on_up
        self._closing = False
        self._client: EngineProcess | None = None

    async def run(self) -> None:
        """Returns after `close` alone. Raises what the first start raised, or EngineDeadError."""
        session, policy = self._session, self._policy
        loop = asyncio.get_running_loop()
        deaths = 0
        while True:
            began = loop.time()
            try:
                await self._start()
                began = loop.time()
                cause: PacelineError = await self._serve()
            except PacelineError as error:
                if session.restarts == 0 and deaths == 0 and not self._closing:
                    raise
                cause = error
            if self._closing:
                return
            await self._end()
            _log.error("the engine is gone: %s", cause)
            if not policy.restart:
                raise EngineDeadError("the engine died and is not started again", seen=cause, fix="see the log above")
            deaths = 1 if loop.time() - began > policy.settled_s else deaths + 1
            if deaths > policy.max_restarts:
                raise EngineDeadError("the engine keeps dying", seen=f"{deaths} deaths in a row, the last: {cause}")
            pause_s = policy.pause_s(deaths)
            session.down(f"restarting the engine in {pause_s:g} s; it died: {cause.message}")
            _log.warning("starting the engine again in %g s", pause_s)
            await asyncio.sleep(pause_s)
            session.restarts += 1

    def let_go(self) -> None:
        """Requests end with an error now, and no engine is started any more."""
        self._closing = True
        self._session.close()

    async def close(self) -> None:
        """End the engine, or its start. Idempotent."""
        self.let_go()
        await self._end()

    async def _start(self) -> None:
        loop, session = asyncio.get_running_loop(), self._session
        session.starting("process")

        def on_phase(name: str) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(session.starting, name)

        def spawn() -> EngineProcess:
            client = self._spawn(on_phase, lambda: self._closing)
            self._client = client
            return client

        await self._thread.call(spawn)

    async def _serve(self) -> EngineError:
        assert self._client is not None
        if self._closing:
            return EngineDeadError("the server is stopping")
        lost = self._session.attach(self._client)
        self._on_up()
        watch = asyncio.create_task(self._watch(), name="paceline-stalls")
        try:
            return await lost
        finally:
            watch.cancel()

    async def _end(self) -> None:
        """Close the engine. One that does not answer within a few seconds is killed."""
        client, self._client = self._client, None
        if client is None:
            return await self._thread.call(lambda: None)  # a start that was given up has ended then
        closing = asyncio.ensure_future(self._thread.call(client.close))
        done, _ = await asyncio.wait({closing}, timeout=_CLOSE_S)
        if not done:
            _log.error("the engine's process does not end; killing it")
            with suppress(ProcessLookupError):
                os.kill(client.pid, signal.SIGKILL)
        return await closing

    async def _watch(self) -> None:
        """Readiness follows what the engine says about its running step."""
        session = self._session
        stuck = False
        while True:
            await asyncio.sleep(min(1.0, self._stall_limit_s / 4))
            try:
                stats = await asyncio.wait_for(session.stats(), self._stall_limit_s)
            except TimeoutError:
                why = f"the engine has not answered for {self._stall_limit_s:g} s"
            except EngineError:
                continue
            else:
                why = (stats.trouble or "a step does not end") if stats.stalled else ""
            if bool(why) != stuck:
                stuck = bool(why)
                if stuck:
                    _log.error("the engine is stuck, readiness is red: %s", why)
                else:
                    _log.warning("the step has ended, the engine is ready again")
            session.stalled(why)
