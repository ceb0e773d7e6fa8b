"""The engine's side of a client in another process.

The main thread steps. A second thread answers calls, so that requests enter while the device computes. A third watches
the parent: when it is gone, so is this process, whatever it is doing.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import zmq

from paceline.contracts.step import encode
from paceline.engine.loop import EngineCore
from paceline.engine.watchdog import Watchdog
from paceline.engine.wire import (
    CALLS_SUFFIX,
    OUTPUTS_SUFFIX,
    Abort,
    AskDecisions,
    AskStats,
    Call,
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
    WireError,
    decode_call,
    split_call,
)
from paceline.errors import EngineError, RequestError

_POLL_MS = 200
_PARENT_GRACE_S = 5.0


class PhaseRelay:
    """Called with the name of each phase of a start-up, tells the client. `serve_child` connects it."""

    def __init__(self) -> None:
        self._outputs: zmq.Socket[bytes] | None = None

    def connect(self, outputs: zmq.Socket[bytes]) -> None:
        self._outputs = outputs

    def __call__(self, name: str) -> None:
        if self._outputs is not None:
            self._outputs.send(encode(Phase(name=name)))


def serve_child(
    core: EngineCore | Callable[[], EngineCore],
    address: str,
    *,
    info: Mapping[str, Any] | Callable[[EngineCore], Mapping[str, Any]] | None = None,
    relay: PhaseRelay | None = None,
    watch_parent: bool = True,
    stall_limit_s: float = 120.0,
) -> int:
    """Serve one client at `address` (a ZMQ endpoint without its suffix) until it says so or is gone.

    `core` may be a function that builds the engine: then what it raises reaches the client as its start-up error.
    `relay`, called by that function in this thread, tells the client about phases of the start. `info` goes to the
    client when the engine is up. A step longer than `stall_limit_s` is told on stderr and in `stats()`. SIGTERM is left
    to the client, which may want to drain first: a service manager sends it to both. Returns the exit status for the
    process.
    """
    if threading.current_thread() is threading.main_thread():
        # not SIG_IGN: programs started from here would inherit that
        signal.signal(signal.SIGTERM, lambda *_: None)
    context = zmq.Context()
    calls, outputs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    try:
        for socket, suffix in ((calls, CALLS_SUFFIX), (outputs, OUTPUTS_SUFFIX)):
            socket.linger = 2000  # ms for the last words to leave
            socket.connect(address + suffix)
        if relay is not None:
            relay.connect(outputs)
        stop, wake = threading.Event(), threading.Event()
        if watch_parent:
            threading.Thread(target=_watch_parent, args=(stop, wake), name="paceline-parent", daemon=True).start()
        try:
            engine = core() if callable(core) else core
            about = info(engine) if callable(info) else info
            ready = encode(Ready(pid=os.getpid(), info=dict(about or {})))
        except Exception as error:
            outputs.send(encode(Failed(error=WireError.of(error))))
            raise
        outputs.send(ready)
        server = _Server(engine, calls, stop, wake)
        server.start()
        try:
            with Watchdog(engine, engine.clock, limit_s=stall_limit_s, report=_say):
                status = _run(engine, outputs, wake, stop)
        finally:
            stop.set()
            server.join()
            engine.close()
        return status
    finally:
        calls.close()
        outputs.close()
        context.term()


def _run(core: EngineCore, outputs: zmq.Socket[bytes], wake: threading.Event, stop: threading.Event) -> int:
    """Step until told to stop. One message per step with outputs."""
    while not stop.is_set():
        wait_s = core.idle_s()
        if wait_s != 0.0 and core.error is None:
            wake.wait(timeout=wait_s)
            wake.clear()
            if stop.is_set():
                break
        news = core.step()
        if news:
            outputs.send(encode(Outputs(outputs=news)))
        if core.error is not None:
            outputs.send(encode(Failed(error=WireError.of(core.error))))
            return 1
    return 0


class _Server(threading.Thread):
    """Answers calls, one at a time, and wakes the loop after each. When it ends, so does the loop: an engine that
    answers nobody must not look alive."""

    def __init__(
        self, core: EngineCore, calls: zmq.Socket[bytes], stop: threading.Event, wake: threading.Event
    ) -> None:
        super().__init__(name="paceline-calls", daemon=True)
        self._core = core
        self._calls = calls
        self._stop_event = stop
        self._wake = wake

    def run(self) -> None:
        try:
            while not self._stop_event.is_set():
                if self._calls.poll(_POLL_MS):
                    self._calls.send(encode(self._reply(self._calls.recv())))
                    self._wake.set()
        finally:
            self._stop_event.set()
            self._wake.set()  # the loop may be asleep

    def _reply(self, data: bytes) -> Reply:
        number, call = split_call(data)
        try:
            return Reply(number=number, value=self._answer(decode_call(call)))
        except msgspec.DecodeError as error:
            # a value of the wrong type: its own side does not check types
            wrong = RequestError("a call that does not decode", seen=error, expected="fields of the declared types")
            return Reply(number=number, error=WireError.of(wrong))
        except Exception as error:
            return Reply(number=number, error=WireError.of(error))

    def _answer(self, call: Call) -> bytes:
        core = self._core
        if isinstance(call, Submit):
            core.submit_all(call.requests)
        elif isinstance(call, PrepareGrammar):
            return encode(core.prepare_grammar(call.grammar))
        elif isinstance(call, Abort):
            core.abort_all(call.request_ids)
        elif isinstance(call, AskStats):
            return encode(core.stats())
        elif isinstance(call, AskDecisions):
            return encode(list(core.decisions(call.request_id)))
        elif isinstance(call, ResetCache):
            return encode(core.reset_prefix_cache())
        elif isinstance(call, TakeEvents):
            return encode(core.kv_events())
        elif isinstance(call, StopIntake):
            core.stop_intake()
        elif isinstance(call, Shutdown):
            self._stop_event.set()
        else:
            raise EngineError("a call this engine does not know", seen=type(call).__name__)
        return b""


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # who listened may be gone
        sys.stderr.write(f"paceline: {text}\n")
        sys.stderr.flush()


def _watch_parent(stop: threading.Event, wake: threading.Event) -> None:
    """End this process when the parent has gone: stdin, a pipe whose other end it holds, is closed, or we have a new
    parent (a fork of the old one may still hold the pipe)."""
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 4096):
            break
    stop.set()
    wake.set()
    try:
        time.sleep(_PARENT_GRACE_S)
        _say("the parent process is gone and a step does not end; leaving")
    finally:
        os._exit(1)
