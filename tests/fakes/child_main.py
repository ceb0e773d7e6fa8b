"""A real child process that serves the toy model: `python -m tests.fakes.child_main MODE ADDRESS`.

Modes: `serve`; `slow` (each step takes 50 ms); `stuck` (the result of the second step never comes); `stuck-plan` (the
second plan is never finished); `fail` (raises while starting); `mute` (says something on stderr and
exits before it is ready); `hang` (never gets ready); `crash` (the executor raises once three rows run together);
`exit` (slow; the process is gone at the first step after SIGUSR1).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from tests.fakes.builders import EOS, VOCAB, scripted_engine
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.word_grammar import compiler

from paceline.contracts.step import StepPlan, StepResult
from paceline.engine.child import serve_child
from paceline.engine.clock import WallClock
from paceline.engine.grammars import Grammars
from paceline.engine.loop import EngineCore
from paceline.errors import ModelError


class _Slow(ScriptedExecutor):
    def submit(self, plan: StepPlan) -> int:
        time.sleep(0.05)
        return super().submit(plan)


class _Stuck(ScriptedExecutor):
    def poll(self, handle: int, *, block: bool = True) -> StepResult | None:
        if handle >= 1:
            threading.Event().wait()
        return super().poll(handle, block=block)


class _Crashes(ScriptedExecutor):
    def submit(self, plan: StepPlan) -> int:
        if plan.num_rows >= 3:
            raise RuntimeError("the device fell off the bus")
        return super().submit(plan)


class _Exits(_Slow):
    """Goes when told to: by itself it might be gone before the reply to the call that made it go has left."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._told = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: self._told.set())

    def submit(self, plan: StepPlan) -> int:
        if self._told.is_set():
            sys.stderr.write("a device error nobody catches\n")
            sys.stderr.flush()
            os._exit(42)
        return super().submit(plan)


def _engine(mode: str) -> EngineCore:
    if mode == "fail":
        raise ModelError("the model cannot be read", seen="model.gguf", expected="a GGUF file", fix="pull it again")
    built = scripted_engine(max_waiting_requests=50)
    executor: Any = built.executor
    modes = {"slow": _Slow, "stuck": _Stuck, "crash": _Crashes, "exit": _Exits}
    if mode in modes:
        executor = modes[mode](executor.model, executor.caps)
    grammars = Grammars(compiler(letter_bytes(VOCAB, (EOS,)), EOS), vocab_size=VOCAB, eos_token_ids=(EOS,))
    limit_s = 0.3 if mode == "stuck-plan" else 20.0  # on a busy machine a plan may take long without a fault
    core = EngineCore(built.scheduler, executor, WallClock(), grammars=grammars, lock_limit_s=limit_s)
    if mode == "stuck-plan":
        plan = built.scheduler.plan

        def hang(now: float) -> StepPlan:
            if core.scheduler.stats(now).step >= 1:
                threading.Event().wait()
            return plan(now)

        built.scheduler.plan = hang  # type: ignore[method-assign]
    return core


def main() -> int:
    mode, address = sys.argv[1:]
    stall_limit_s = 0.4 if mode.startswith("stuck") else 120.0
    if mode == "mute":
        sys.stderr.write("no such device\n")
        return 3
    if mode == "hang":
        time.sleep(60)
    return serve_child(lambda: _engine(mode), address, info={"model": "toy"}, stall_limit_s=stall_limit_s)


if __name__ == "__main__":
    sys.exit(main())
