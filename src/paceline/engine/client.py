"""Clients of an engine: in this process, or in a child process over ZMQ. Both are `contracts.ports.EngineClient`."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.contracts.decision import Decision
from paceline.contracts.ports import EngineStats
from paceline.contracts.request import FinishReason, Request, RequestOutput
from paceline.contracts.step import decode, encode
from paceline.engine.child_process import ChildProcess
from paceline.engine.watchdog import Watchdog
from paceline.engine.wire import (
    Abort,
    AskDecisions,
    AskStats,
    Call,
    Failed,
    Outputs,
    Ready,
    Reply,
    ResetCache,
    Shutdown,
    StopIntake,
    Submit,
    decode_news,
)
from paceline.errors import EngineDeadError, EngineError, RequestError

if TYPE_CHECKING:
    from paceline.engine.loop import EngineCore

_SLICE_MS = 50  # how often a waiting client looks whether the child still lives


def _take_all(ready: deque[RequestOutput]) -> Iterator[RequestOutput]:
    """Empty `ready`. Other threads may do the same: each output goes to one of them."""
    while True:
        try:
            output = ready.popleft()
        except IndexError:
            return
        yield output


class InProcessClient:
    """The engine in this process. By default it steps in the caller's thread while outputs are pulled; with
    `background=True` a thread of its own steps whenever there is work. Either way a watchdog marks a step longer than
    `stall_limit_s` (`stats().stalled`). After `close`, `outputs` gives an error for each request that was open."""

    def __init__(self, core: EngineCore, *, background: bool = False, stall_limit_s: float = 120.0) -> None:
        self._core = core
        self._ready: deque[RequestOutput] = deque()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._stepping = False  # the background thread holds outputs that are not in `_ready` yet
        self._thread: threading.Thread | None = None
        self._watchdog = Watchdog(core, core.clock, limit_s=stall_limit_s)
        self._watchdog.start()
        if background:
            self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)
            self._thread.start()

    @property
    def core(self) -> EngineCore:
        return self._core

    def submit(self, request: Request) -> None:
        self._core.submit(request)
        self._notify()

    def abort(self, request_id: int) -> None:
        self._core.abort(request_id)
        self._notify()

    def outputs(self, timeout_s: float | None = None) -> Iterator[RequestOutput]:
        """Outputs that are ready, waiting at most `timeout_s` for the first; none when nothing is open.

        In the caller's thread this is what runs the engine, and a timeout is looked at between steps.
        """
        if self._thread is None:
            self._step_until_ready(timeout_s)
        else:
            with self._changed:
                if timeout_s is None:
                    self._changed.wait_for(lambda: self._ready or not self._busy())
                else:
                    self._changed.wait_for(lambda: self._ready, timeout_s)
        yield from _take_all(self._ready)

    def stats(self) -> EngineStats:
        return self._core.stats()

    def decisions(self, request_id: int) -> Sequence[Decision]:
        return self._core.decisions(request_id)

    def reset_prefix_cache(self) -> bool:
        return self._core.reset_prefix_cache()

    def drain(self, timeout_s: float) -> bool:
        """Outputs of the drained requests stay ready to be pulled."""
        clock = self._core.clock
        self._core.stop_intake()
        end = clock.now() + timeout_s
        if self._thread is not None:
            with self._changed:
                return self._changed.wait_for(lambda: not self._busy(), timeout_s)
        while self._core.has_work and clock.now() < end:
            self._step_once(end)
        return not self._core.has_work

    def close(self) -> None:
        self._stop.set()
        self._notify()
        if self._thread is not None:
            self._thread.join()
        self._watchdog.stop()
        self._core.close()
        self._ready.extend(self._core.step())  # a closed engine only hands out how its open requests ended
        self._notify()  # whoever waits for outputs that will not come

    def _busy(self) -> bool:
        return self._stepping or self._core.has_work

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _step_once(self, end: float | None) -> None:
        """One step, after sleeping (on the engine's clock) until it can do something or `end` comes."""
        wait_s = self._core.idle_s()
        if wait_s:
            clock = self._core.clock
            if end is not None:
                wait_s = min(wait_s, max(0.0, end - clock.now()))
            clock.sleep(wait_s)
        self._ready.extend(self._core.step())

    def _step_until_ready(self, timeout_s: float | None) -> None:
        clock = self._core.clock
        end = None if timeout_s is None else clock.now() + timeout_s
        while not self._ready and self._core.has_work:
            self._step_once(end)
            if end is not None and clock.now() >= end:
                return

    def _run(self) -> None:
        while not self._stop.is_set():
            wait_s = self._core.idle_s()
            with self._changed:
                if wait_s != 0.0:
                    # a submit between the question and here is seen by asking again under the condition's lock
                    self._changed.wait_for(lambda: self._stop.is_set() or self._core.idle_s() == 0.0, wait_s)
                    continue
                self._stepping = True
            news = self._core.step()
            with self._changed:
                self._stepping = False
                self._ready.extend(news)
                self._changed.notify_all()


class ChildClient:
    """An engine in a child process, started as `argv` plus one argument, the address for `serve_child`.

    `environment` is the child's whole environment (None: this process's). When the child dies or is closed, every open
    request gets an error output; every later call raises EngineDeadError, `outputs` once those are pulled. When this
    process dies, so does the child. Safe to use from several threads.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
        call_timeout_s: float = 60.0,
    ) -> None:
        self._call_timeout_s = call_timeout_s
        self._open: dict[int, bool] = {}  # request id -> the engine said it took it
        self._ready: deque[RequestOutput] = deque()
        self._dead: EngineDeadError | None = None
        self._call_lock = threading.Lock()
        self._pump_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._child = ChildProcess(argv, environment)
        self._finalizer = weakref.finalize(self, self._child.end, 1.0)
        try:
            self.info = self._handshake(start_timeout_s)
        except BaseException:
            self._finalizer()
            raise

    @property
    def pid(self) -> int:
        return self._child.process.pid

    # --- EngineClient

    def submit(self, request: Request) -> None:
        with self._state_lock:
            self._require_alive()
            if request.request_id in self._open:
                raise RequestError(
                    "this request id is still in use",
                    param="request_id",
                    seen=request.request_id,
                    expected="an id no open request has",
                )
            self._open[request.request_id] = False  # before the call: its first outputs may overtake the reply
        try:
            self._call(Submit(request=request))
        except BaseException:
            with self._state_lock:
                self._open.pop(request.request_id, None)
            raise
        with self._state_lock:
            if request.request_id not in self._open:
                return  # it has ended already
            if self._dead is not None:
                del self._open[request.request_id]
                raise self._dead
            self._open[request.request_id] = True

    def abort(self, request_id: int) -> None:
        if request_id in self._open:
            self._call(Abort(request_id=request_id))

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
        yield from _take_all(self._ready)

    def stats(self) -> EngineStats:
        return decode(self._call(AskStats()), EngineStats)

    def decisions(self, request_id: int) -> Sequence[Decision]:
        return decode(self._call(AskDecisions(request_id=request_id)), list[Decision])

    def reset_prefix_cache(self) -> bool:
        return decode(self._call(ResetCache()), bool)

    def drain(self, timeout_s: float) -> bool:
        self._call(StopIntake())
        end = time.monotonic() + timeout_s
        while self._open and time.monotonic() < end:
            self._pump(_SLICE_MS / 1000)
        return not self._open

    def close(self) -> None:
        """End and reap the child. Idempotent."""
        if not self._finalizer.alive:
            return
        with self._call_lock, self._pump_lock:
            if self._dead is None:
                self._child.tell(encode(Shutdown()))
                self._die(EngineDeadError("the engine is closed"))
            self._finalizer()

    # --- messages

    def _handshake(self, timeout_s: float) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self._child.outputs.poll(_SLICE_MS):
                news = decode_news(self._child.outputs.recv())
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

    def _call(self, call: Call) -> bytes:
        with self._call_lock:
            self._require_alive()
            if not self._child.tell(encode(call)):
                self._bury("the engine process takes no calls")
            end = time.monotonic() + self._call_timeout_s
            while not self._child.calls.poll(_SLICE_MS):
                if self._child.process.poll() is not None or time.monotonic() > end:
                    self._bury(f"the engine process has not answered for {self._call_timeout_s:g} s")
            reply = decode(self._child.calls.recv(), Reply)
        if reply.error is not None:
            raise reply.error.rebuild()
        return reply.value

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
                for output in news.outputs:
                    if output.finish is not None:
                        self._open.pop(output.request_id, None)
                self._ready.extend(news.outputs)
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
