"""The engine as coroutines of one event loop see it, through deaths and restarts of its process.

    streams = await session.generate(call)          # one OutputStream per choice, all of them or none
    for output in await streams[0].next(): ...      # whatever is ready; the last one has `.finish`
    streams[0].close()                              # leaving early aborts; always safe, never waits

Three threads serve it: the *text thread* runs tokenisers and templates, the *calls thread* asks the engine (each call
is a round trip), and one *pump thread* per engine waits for its outputs and hands each batch to the loop in one go. All
state is the loop's own: no lock is held here.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from paceline.contracts.decision import Decision
from paceline.contracts.ports import EngineClient, EngineStats
from paceline.contracts.request import FinishReason, Request, RequestOutput
from paceline.errors import EngineDeadError, EngineError

T = TypeVar("T")
OnFinish = Callable[[RequestOutput], None]

STOPPING = "the server is stopping"


class EngineProcess(EngineClient, Protocol):
    """An engine in a process of its own."""

    info: dict[str, Any]  # what it told about itself when it was ready

    @property
    def pid(self) -> int: ...


class OutputStream:
    """The outputs of one request, for one reader.

    `on_finish` is called in the loop with the last output, once, also when nobody reads any more: what an abandoned
    request used is known only then.
    """

    __slots__ = ("_closed", "_ended", "_ready", "_session", "_waiter", "on_finish", "request_id")

    def __init__(self, session: EngineSession, request_id: int) -> None:
        self.request_id = request_id
        self.on_finish: OnFinish | None = None
        self._session = session
        self._ready: list[RequestOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._closed = False

    @property
    def ended(self) -> bool:
        """The last output has come (and may still be unread)."""
        return self._ended

    async def next(self) -> list[RequestOutput]:
        """All outputs that are ready, at least one. Not to be called after the last one or after `close`."""
        if not self._ready:
            assert not self._ended, "the last output has been read"
            assert not self._closed, "the stream is closed"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Nobody reads any more: end the request if it has not ended. Idempotent, never waits, never raises."""
        if self._closed:
            return
        self._closed = True
        self._ready = []
        if not self._ended:
            self._session._abort(self.request_id)

    def push(self, output: RequestOutput) -> None:
        """The session's: take one output in."""
        if self._ended:
            return
        self._ended = output.finish is not None
        if not self._closed:
            self._ready.append(output)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
        if self._ended and self.on_finish is not None:
            on_finish, self.on_finish = self.on_finish, None  # no circle: what a call held is free as soon as it ends
            on_finish(output)


class EngineSession:
    """Made in a running loop; a supervisor attaches an engine to it, and another one when that has died."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._client: EngineProcess | None = None
        self._open: dict[int, OutputStream] = {}
        self._to_abort: deque[int] = deque()
        self._ids = itertools.count(1)  # never begins anew, so an output of a dead engine has no taker
        self._text = ThreadPoolExecutor(1, thread_name_prefix="paceline-text")
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="paceline-calls")
        self._idle = asyncio.Event()
        self._idle.set()
        self._attached = asyncio.Event()
        self._lost: asyncio.Future[EngineError] | None = None
        self._trouble = "loading: not started"
        self._stalled = ""
        self.draining = False
        self.restarts = 0
        self.info: dict[str, Any] = {}
        self.phases: dict[str, float] = {}  # seconds of the engine's last start, by phase

    # --- looking

    @property
    def alive(self) -> bool:
        """An engine is attached: calls reach it."""
        return self._client is not None

    @property
    def ready(self) -> bool:
        """Worth sending requests to."""
        return not self.why_not_ready

    @property
    def why_not_ready(self) -> str:
        """Empty when it is; else why, in words, `loading: PHASE` while the engine starts; decisions may follow in
        further lines."""
        if self.draining:
            return STOPPING
        return self._trouble if self._client is None else self._stalled

    @property
    def num_open(self) -> int:
        """Requests whose last output has not come."""
        return len(self._open)

    @property
    def engine_pid(self) -> int | None:
        return None if self._client is None else self._client.pid

    # --- for request handlers

    def next_id(self) -> int:
        """A request id that this server process has not used before."""
        return next(self._ids)

    async def text(self, run: Callable[..., T], *args: Any) -> T:
        """`run(*args)` in the text thread."""
        return await self._loop.run_in_executor(self._text, run, *args)

    async def generate(self, call: Sequence[Request]) -> list[OutputStream]:
        """Submit the requests of one call, all of them or none; one stream for each, in their order.

        Raises RequestError (QueueFullError when the queue has no room) and EngineError when no engine can take them.
        """
        if self.draining:
            raise EngineError(f"{STOPPING} and takes nothing new", fix="send the request elsewhere")
        client = self._require()
        streams = [OutputStream(self, request.request_id) for request in call]
        for stream in streams:
            assert stream.request_id not in self._open, "ids come from next_id"
            self._open[stream.request_id] = stream  # before the call: first outputs may overtake its answer
        self._idle.clear()
        submitted = self._calls.submit(client.submit_all, list(call))
        try:
            await asyncio.wrap_future(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(lambda done: self._tell(self._abandon, streams, done))
            raise
        except EngineDeadError as error:
            self._forget(streams)
            raise EngineDeadError(error.message, fix="try again in a moment") from None  # without its `seen`: below
        except BaseException:
            self._forget(streams)
            raise
        return streams

    async def prepare_grammar(self, grammar: bytes, *, within_s: float) -> None:
        """Returns when the engine has compiled it, which never keeps other calls waiting. Raises RequestError when it
        is wrong, EngineError when it takes longer than `within_s`."""
        end, pause_s = self._loop.time() + within_s, 0.002
        while not await self._ask(lambda client: client.prepare_grammar(grammar)):
            if self._loop.time() > end:
                raise EngineError("the grammar is not compiled yet", seen=f"after {within_s:g} s", fix="try again")
            await asyncio.sleep(pause_s)
            pause_s = min(0.05, 2 * pause_s)

    async def stats(self) -> EngineStats:
        """A look at the engine between steps. Raises EngineError when there is none."""
        return await self._ask(lambda client: client.stats())

    async def decisions(self, request_id: int) -> Sequence[Decision]:
        return await self._ask(lambda client: client.decisions(request_id))

    async def reset_prefix_cache(self) -> bool:
        """False when it could not be done now."""
        return await self._ask(lambda client: client.reset_prefix_cache())

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new, wait for what is open, then end the rest with an error. True if nothing was cut off."""
        self.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        left = list(self._open.values())
        for stream in left:
            self._abort(stream.request_id)
        self._fail_all(f"{STOPPING}: the request did not end within {timeout_s:g} s")
        return not left

    # --- for the supervisor

    def starting(self, phase: str) -> None:
        self._trouble = f"loading: {phase}"

    def down(self, why: str) -> None:
        self._trouble = why

    def stalled(self, why: str) -> None:
        """Why the engine should get no requests although it lives; empty takes it back."""
        self._stalled = why

    def attach(self, client: EngineProcess) -> asyncio.Future[EngineError]:
        """Serve with this engine. The future gets the reason once it is lost."""
        assert self._client is None
        self._client, self._stalled = client, ""
        self.info = dict(client.info)
        self.phases = dict(client.info.get("phases", {}))
        self._lost = self._loop.create_future()
        self._attached.set()
        threading.Thread(target=self._pump, args=(client,), name="paceline-pump", daemon=True).start()
        return self._lost

    async def first_engine(self) -> None:
        """Returns once an engine was attached."""
        await self._attached.wait()

    def close(self) -> None:
        """Let go of the engine: every open stream gets an error. The client is its owner's to close."""
        self.draining = True
        self._client = None
        self._fail_all(STOPPING)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(EngineDeadError(STOPPING))

    def end_threads(self) -> None:
        """After `close`, when no handler runs any more."""
        self._text.shutdown(wait=False, cancel_futures=True)
        self._calls.shutdown(wait=False, cancel_futures=True)

    # --- inside

    def _require(self) -> EngineProcess:
        if self._client is None:
            raise EngineDeadError("the engine is not there", seen=self._trouble, fix="try again in a moment")
        return self._client

    async def _ask(self, question: Callable[[EngineProcess], T]) -> T:
        return await self._loop.run_in_executor(self._calls, question, self._require())

    def _abort(self, request_id: int) -> None:
        """Ask the engine to end it. Its last output comes as any other does."""
        client = self._client
        if client is None or request_id not in self._open:
            return
        self._to_abort.append(request_id)
        if len(self._to_abort) == 1:  # else the call that takes it is on its way; its submission has ended long ago
            with suppress(RuntimeError):  # the calls thread has been shut down
                self._calls.submit(self._abort_them, client)

    def _abort_them(self, client: EngineProcess) -> None:
        """In the calls thread: all that have gathered, in one round trip."""
        ids: list[int] = []
        with suppress(IndexError):
            while True:
                ids.append(self._to_abort.popleft())
        with suppress(EngineError):
            client.abort_all(ids)

    def _abandon(self, streams: Sequence[OutputStream], submitted: Future[None]) -> None:
        """The caller left while its requests were being submitted."""
        if submitted.cancelled() or submitted.exception() is not None:
            return self._forget(streams)
        for stream in streams:
            stream.close()
        return None

    def _forget(self, streams: Sequence[OutputStream]) -> None:
        for stream in streams:
            self._open.pop(stream.request_id, None)
        self._look_idle()

    def _look_idle(self) -> None:
        if not self._open:
            self._idle.set()

    def _pump(self, client: EngineProcess) -> None:
        cause: EngineError
        try:
            while True:
                outputs = list(client.outputs(timeout_s=1.0))
                if outputs:
                    self._tell(self._dispatch, outputs)
        except EngineError as error:
            cause = error
        except Exception as error:
            cause = EngineDeadError("the engine's outputs cannot be read", seen=f"{type(error).__name__}: {error}")
        self._tell(self._on_lost, client, cause)

    def _tell(self, hear: Callable[..., None], *args: Any) -> None:
        """From another thread: have the loop run it. When the loop is closed, nobody is left to be told."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(hear, *args)

    def _dispatch(self, outputs: list[RequestOutput]) -> None:
        streams = self._open
        for output in outputs:
            stream = streams.get(output.request_id)
            if stream is not None:
                if output.finish is not None:
                    del streams[output.request_id]
                stream.push(output)
        self._look_idle()

    def _on_lost(self, client: EngineProcess, cause: EngineError) -> None:
        if client is not self._client:
            return
        self._client = None
        self._trouble = f"the engine is gone: {cause.message}"
        # `seen` has the process's last words on stderr: for the operator's log, not for clients
        self._fail_all(cause.message)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(cause)

    def _fail_all(self, why: str) -> None:
        while self._open:
            request_id, stream = self._open.popitem()
            stream.push(RequestOutput(request_id=request_id, token_ids=[], finish=FinishReason.ERROR, error=why))
        self._look_idle()


__all__ = ["EngineProcess", "EngineSession", "OnFinish", "OutputStream"]
