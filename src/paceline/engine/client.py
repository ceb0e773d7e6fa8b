"""The client of an engine in this process. `child_client` has that of one in a child process; both are
`contracts.ports.EngineClient`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.contracts.decision import Decision
from paceline.contracts.kv import KVEvents
from paceline.contracts.ports import EngineStats
from paceline.contracts.request import Request, RequestOutput
from paceline.engine.watchdog import Watchdog

if TYPE_CHECKING:
    from paceline.engine.loop import EngineCore


def take_all(ready: deque[RequestOutput]) -> Iterator[RequestOutput]:
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
        self.submit_all((request,))

    def submit_all(self, requests: Sequence[Request]) -> None:
        self._core.submit_all(requests)
        self._notify()

    def prepare_grammar(self, grammar: bytes) -> bool:
        return self._core.prepare_grammar(grammar)

    def abort(self, request_id: int) -> None:
        self.abort_all((request_id,))

    def abort_all(self, request_ids: Sequence[int]) -> None:
        self._core.abort_all(request_ids)
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
        yield from take_all(self._ready)

    def stats(self) -> EngineStats:
        return self._core.stats()

    def decisions(self, request_id: int) -> Sequence[Decision]:
        return self._core.decisions(request_id)

    def reset_prefix_cache(self) -> bool:
        return self._core.reset_prefix_cache()

    def kv_events(self) -> KVEvents:
        return self._core.kv_events()

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
