"""The engines behind servers in tests: the toy model through the scripted executor, or a simulated device in real time.

A control file tells a running engine what to do at its next steps: `slow 0.05` (each takes that long), `hang` (until
the file says something else), `die`, or nothing. `hold` keeps one that starts from being ready.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from tests.fakes.builders import make_kv, make_layout
from tests.fakes.scripted_executor import ScriptedExecutor, scripted_caps
from tests.fakes.server_text import EOS, toy_tokenizer
from tests.fakes.toy_model import ToyModel

from paceline.contracts.ports import Executor
from paceline.contracts.step import StepPlan
from paceline.cost.linear import LinearStepCost
from paceline.engine.clock import WallClock
from paceline.engine.grammars import Grammars
from paceline.engine.loop import EngineCore
from paceline.engine.scheduler import Scheduler
from paceline.engine.settings import Policy, SchedulerSettings
from paceline.sim import SimulatedExecutor, VirtualClock, seeded_oracle, simulated_caps
from paceline.text.grammar import GrammarCompiler

POISON = "POISON"  # a prompt that begins with it makes its row fail


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a test says about the engine. `control` is the path of the control file."""

    kind: str = "toy"  # or "simulated"
    control: str = ""
    start_s: float = 0.0  # loading takes so long
    fail_start: str = ""  # loading fails with this message
    step_ms: float = 0.0  # of a toy step, at least
    num_blocks: int = 512
    block_size: int = 16
    max_rows: int = 16
    max_tokens: int = 512
    max_model_len: int = 512
    max_waiting_requests: int | None = 256
    policy: Policy = "priority"
    token_ms: float = 0.0  # simulated step: fixed_ms + tokens * token_ms
    fixed_ms: float = 20.0
    seed: int = 0


class RealTimeClock(VirtualClock):
    """Time passes by itself; moving on to a moment is sleeping until then."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def advance_to(self, time_s: float) -> None:  # type: ignore[override]
        self.sleep(time_s - self.now())


def order_in(control: str) -> str:
    try:
        return Path(control).read_text().strip() if control else ""
    except FileNotFoundError:
        return ""


def wait_while_held(control: str) -> None:
    while order_in(control) == "hold":
        time.sleep(0.02)


class Controlled:
    """An executor that obeys the control file before it computes."""

    def __init__(self, inner: Executor, control: str, step_ms: float) -> None:
        self.inner = inner
        self.caps = inner.caps
        self._file = control
        self._step_ms = step_ms

    def submit(self, plan: StepPlan) -> Any:
        self._obey()
        if self._step_ms:
            time.sleep(self._step_ms / 1000)
        return self.inner.submit(plan)

    def _obey(self) -> None:
        while True:
            word, _, number = order_in(self._file).partition(" ")
            if word == "die":
                sys.stderr.write("the device fell off the bus\n")
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            if word == "slow":
                time.sleep(float(number))
            if word != "hang":
                return
            time.sleep(0.02)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Poisonable(ScriptedExecutor):
    """Rows whose prompt begins with POISON fail when drawn."""

    def submit(self, plan: StepPlan) -> int:
        poison = toy_tokenizer().encode(POISON)
        for admit in plan.admits:
            if list(admit.token_ids[: len(poison)]) == poison:
                self.poisoned.add(admit.request_id)
        return super().submit(plan)

    def __post_init__(self) -> None:
        self.poisoned: set[int] = set()
        self.fault = lambda request_id, _step: request_id in self.poisoned
        super().__post_init__()


def build_engine(options: EngineOptions) -> EngineCore:
    tokenizer = toy_tokenizer()
    layout = make_layout(options.num_blocks, options.block_size)
    sizes = {"max_rows": options.max_rows, "max_tokens": options.max_tokens, "vocab_size": tokenizer.vocab_size}
    cost = LinearStepCost(fixed_ms=options.fixed_ms, per_token_ms=options.token_ms)
    executor: Executor
    clock: WallClock | RealTimeClock
    if options.kind == "simulated":
        clock = RealTimeClock()
        oracle = seeded_oracle(tokenizer.vocab_size, seed=options.seed, eos_token_id=EOS)
        executor = SimulatedExecutor(simulated_caps(layout, **sizes), cost, clock, oracle)
    else:
        clock = WallClock()
        executor = Poisonable(ToyModel(tokenizer.vocab_size), scripted_caps(layout, **sizes))
    settings = SchedulerSettings(
        max_num_seqs=options.max_rows,
        max_num_batched_tokens=options.max_tokens,
        max_model_len=options.max_model_len,
        max_waiting_requests=options.max_waiting_requests,
        policy=options.policy,
    )
    scheduler = Scheduler(
        settings,
        executor.caps,
        make_kv(executor.caps, settings),
        cost,
        token_bytes=list(tokenizer.token_bytes()),
        eos_token_ids=(EOS,),
    )
    compiler = GrammarCompiler.of(tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=[EOS])
    grammars = Grammars(compiler, vocab_size=tokenizer.vocab_size, eos_token_ids=(EOS,))
    return EngineCore(scheduler, Controlled(executor, options.control, options.step_ms), clock, grammars=grammars)
