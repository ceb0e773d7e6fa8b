"""The client of an engine in a child process, over ZMQ. One of the two `contracts.ports.EngineClient`."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from paceline.contracts.decision import Decision
from paceline.contracts.kv import KVEvents
from paceline.contracts.ports import EngineStats
from paceline.contracts.request import FinishReason, Request, RequestOutput
from paceline.contracts.step import decode, encode
from paceline.engine.child_process import ChildProcess
from paceline.engine.client import take_all
from paceline.engine.wire import (
    Abort,
    AskDecisions,
    AskStats,
    Failed,
    Outputs,
    Phase,
    PrepareGrammar,
    Ready,
    Reply,
    ResetCache,
    Shutdown,
    StopIntake,
    Submit,
    TakeEvents,
    decode_news,
    frame_call,
)
from paceline.errors import EngineDeadError, EngineError, PacelineError, RequestError

_SLICE_MS = 50  # how often a waiting client looks whether the child still lives


class ChildClient:
    """An engine in a child process, started as `argv` plus one argument, the address for `serve_child`.

    `environment` is the child's whole environment (None: this process's). When the child dies or is closed, every open
    request gets an error output; every later call raises EngineDeadError, `outputs` once those are pulled. When this
    process dies, so does the child. Safe to use from several threads. A call may be interrupted (Ctrl-C): requests that
    were being submitted are then ended, and the next call gets its own reply.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
        call_timeout_s: float = 60.0,
        on_phase: Callable[[str], None] | None = None,
        give_up: Callable[[], bool] | None = None,
    ) -> None:
        """Waits until the engine is ready: at most `start_timeout_s`, and only until `give_up`, asked now and then,
        says true. `on_phase` is told the phases of its start as they begin."""
        self._call_timeout_s = call_timeout_s
        self._closing = False
        self._number = 0  # of the last call
        self._asked_at: float | None = None
        self._abandoned: dict[int, Sequence[int]] = {}  # interrupted call -> the requests it submitted
        self._disowned: set[int] = set()  # requests of such calls that may still be in the engine
        self._open: dict[int, bool] = {}  # request id -> the engine said it took it
        self._ready: deque[RequestOutput] = deque()
        self._dead: EngineDeadError | None = None
        self._call_lock = threading.Lock()
        self._pump_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._child = ChildProcess(argv, environment)
        self._finalizer = weakref.finalize(self, self._child.end, 1.0)
        try:
            self.info = self._handshake(start_timeout_s, on_phase, give_up)
        except BaseException:
            self._finalizer()
            raise

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def unanswered_s(self) -> float:
        """How long the call that is being waited for, if any, has had no reply. Takes no lock and never waits: for a
        look from another thread at an engine that answers nobody."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    # --- EngineClient

    def submit(self, request: Request) -> None:
        self.submit_all((request,))

    def submit_all(self, requests: Sequence[Request]) -> None:
        call = encode(Submit(requests=list(requests)))
        ids = tuple(request.request_id for request in requests)
        with self._state_lock:
            self._require_alive()
            for request_id in ids:
                if request_id in self._open or request_id in self._disowned:
                    raise RequestError(
                        "this request id is still in use",
                        param="request_id",
                        seen=request_id,
                        expected="an id no open request has",
                    )
            self._open.update(dict.fromkeys(ids, False))  # before the call: first outputs may overtake the reply
        try:
            self._call(call, ids)
        except BaseException:
            with self._state_lock:
                for request_id in ids:
                    self._open.pop(request_id, None)
            raise
        with self._state_lock:
            left = [request_id for request_id in ids if request_id in self._open]  # the others have ended already
            if self._dead is None:
                self._open.update(dict.fromkeys(left, True))
                return
            for request_id in left:
                del self._open[request_id]
            if left:
                raise self._dead

    def prepare_grammar(self, grammar: bytes) -> bool:
        return decode(self._call(encode(PrepareGrammar(grammar=grammar))), bool)

    def abort(self, request_id: int) -> None:
        self.abort_all((request_id,))

    def abort_all(self, request_ids: Sequence[int]) -> None:
        ids = [request_id for request_id in request_ids if request_id in self._open]
        if ids:
            self._call(encode(Abort(request_ids=ids)))

    def outputs(self, timeout_s: float | None = None) -> Iterator[RequestOutput]:
        """Outputs that are ready, waiting at most `timeout_s` for the first (None: as long as a request is open)."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ready:
            if self._dead is not None:
                raise self._dead
            if end is None and not self._open:
                return
            left_s = _SLICE_MS / 1000 if end is None else end - time.monotonic()
            self._pump(max(0.0, min(left_s, _SLICE_MS / 1000)))
            if end is not None and time.monotonic() >= end:
                break
        yield from take_all(self._ready)

    def stats(self) -> EngineStats:
        return decode(self._call(encode(AskStats())), EngineStats)

    def decisions(self, request_id: int) -> Sequence[Decision]:
        return decode(self._call(encode(AskDecisions(request_id=request_id))), list[Decision])

    def reset_prefix_cache(self) -> bool:
        return decode(self._call(encode(ResetCache())), bool)

    def kv_events(self) -> KVEvents:
        return decode(self._call(encode(TakeEvents())), KVEvents)

    def drain(self, timeout_s: float) -> bool:
        self._call(encode(StopIntake()))
        end = time.monotonic() + timeout_s
        while self._open and time.monotonic() < end:
            self._pump(_SLICE_MS / 1000)
        return not self._open

    def close(self) -> None:
        """End and reap the child. Idempotent. A call another thread waits for raises EngineDeadError."""
        if not self._finalizer.alive:
            return
        self._closing = True
        with self._call_lock, self._pump_lock:
            if self._dead is None:
                self._child.tell(frame_call(self._next_number(), encode(Shutdown())))
                self._die(EngineDeadError("the engine is closed"))
            self._finalizer()

    # --- messages

    def _handshake(
        self, timeout_s: float, on_phase: Callable[[str], None] | None, give_up: Callable[[], bool] | None
    ) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if give_up is not None and give_up():
                raise EngineError("the start of the engine was given up")
            if self._child.outputs.poll(_SLICE_MS):
                news = decode_news(self._child.outputs.recv())
                if isinstance(news, Phase):
                    if on_phase is not None:
                        on_phase(news.name)
                    continue
                if isinstance(news, Failed):
                    raise news.error.rebuild()
                assert isinstance(news, Ready)
                return news.info
            if self._child.process.poll() is not None:
                raise self._obituary("the engine process ended while starting")
        raise EngineError(
            "the engine process did not get ready in time",
            seen=self._child.last_words() or "no message",
            expected=f"ready within {timeout_s:g} s",
            fix="raise start_timeout_s if the model is large",
        )

    def _call(self, call: bytes, submitted: Sequence[int] = ()) -> bytes:
        """Send one encoded call and wait for its reply. `submitted`: the requests that come with it."""
        with self._call_lock:
            self._require_alive()
            number = self._next_number()
            self._asked_at = time.monotonic()
            try:
                if not self._child.tell(frame_call(number, call)):
                    self._bury("the engine process takes no calls")
                reply = self._await_reply(number)
            except PacelineError:
                raise
            except BaseException:  # Ctrl-C: the reply will come, and belongs to nobody then
                if submitted:
                    self._disown(number, submitted)
                raise
            finally:
                self._asked_at = None
        if reply.error is not None:
            raise reply.error.rebuild()
        return reply.value

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _await_reply(self, number: int) -> Reply:
        end = time.monotonic() + self._call_timeout_s
        while True:
            while not self._child.calls.poll(_SLICE_MS):
                if self._closing:
                    self._bury("the engine is closed")
                gone = self._child.process.poll() is not None
                if gone and self._child.calls.poll(_SLICE_MS):
                    break  # its last reply was still on the way
                if gone or time.monotonic() > end:
                    self._bury(f"the engine process has not answered for {self._call_timeout_s:g} s")
            reply = decode(self._child.calls.recv(), Reply)
            self._settle(reply)
            if reply.number == number:
                return reply

    def _settle(self, reply: Reply) -> None:
        """Replies come in the order of calls: what this one says about submissions that were interrupted."""
        for number in [n for n in self._abandoned if n <= reply.number]:
            submitted = self._abandoned.pop(number)
            if number < reply.number or reply.error is not None:  # never sent, or refused
                with self._state_lock:
                    self._disowned.difference_update(submitted)

    def _disown(self, number: int, submitted: Sequence[int]) -> None:
        """The engine may or may not have these requests: tell it to end them, and let nobody see their outputs."""
        with self._state_lock:
            self._disowned.update(submitted)
        self._abandoned[number] = submitted
        self._child.tell(frame_call(self._next_number(), encode(Abort(request_ids=list(submitted)))))

    def _pump(self, timeout_s: float) -> None:
        """Move what the engine said into `_ready`; wait at most `timeout_s` for the first message."""
        with self._pump_lock:
            if self._dead is not None:
                return
            socket = self._child.outputs
            wait_ms = int(timeout_s * 1000)
            while socket.poll(wait_ms):
                wait_ms = 0
                self._take(socket.recv())
            if self._child.process.poll() is not None and not socket.poll(0):
                self._die(self._obituary("the engine process died"))

    def _take(self, data: bytes) -> None:
        news = decode_news(data)
        if isinstance(news, Outputs):
            with self._state_lock:
                # nobody knows the ids of an interrupted submission
                self._ready.extend(output for output in news.outputs if output.request_id in self._open)
                for output in news.outputs:
                    if output.finish is not None:
                        self._open.pop(output.request_id, None)
                        self._disowned.discard(output.request_id)
        elif isinstance(news, Failed):
            self._die(EngineDeadError(str(news.error.rebuild())))

    def _bury(self, otherwise: str) -> NoReturn:
        """Raise why the engine is lost: what it said or how its process ended, or else `otherwise`."""
        self._pump(0.0)  # its last outputs count, and it may have said why
        self._die(EngineDeadError(otherwise))
        assert self._dead is not None
        raise self._dead

    def _die(self, error: EngineDeadError) -> None:
        """The engine is gone: an error for every open request, once. Those still being submitted get an exception."""
        with self._state_lock:
            if self._dead is not None:
                return
            self._dead = error
            for request_id in [i for i, taken in self._open.items() if taken]:
                del self._open[request_id]
                self._ready.append(
                    RequestOutput(request_id=request_id, token_ids=[], finish=FinishReason.ERROR, error=str(error))
                )

    def _obituary(self, what: str) -> EngineDeadError:
        status = self._child.process.returncode
        how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
        words = self._child.last_words()
        return EngineDeadError(what, seen=f"{how}; {words}" if words else how, fix="see its last words; restart it")

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise self._dead
