"""Whole engines in one line: real scheduler and KV manager over the scripted or the simulated executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.scripted_executor import ScriptedExecutor, scripted_caps
from tests.fakes.toy_model import Draw, ToyModel

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.ports import CostModel, Drafter, Executor, ExecutorCaps, GrammarFactory, SpecKind
from paceline.contracts.request import Request, RequestOutput, SamplingParams, TokenPrompt
from paceline.cost.linear import LinearStepCost
from paceline.engine.decisions import DecisionRing
from paceline.engine.grammars import Grammars
from paceline.engine.journal import StepJournal
from paceline.engine.kv_manager import KVManager
from paceline.engine.loop import EngineCore
from paceline.engine.scheduler import Scheduler
from paceline.engine.settings import SchedulerSettings
from paceline.sim import SimulatedExecutor, VirtualClock, seeded_oracle, simulated_caps

EOS = 7
VOCAB = 48


def make_layout(
    num_blocks: int = 64, block_size: int = 4, windows: Sequence[int | None] = (None,), bytes_per_block: int = 64
) -> KVLayout:
    groups = tuple(
        KVGroupSpec(
            kind="full" if window is None else "sliding",
            layers=(layer,),
            block_size=block_size,
            bytes_per_block=bytes_per_block,
            window=window,
        )
        for layer, window in enumerate(windows)
    )
    return KVLayout(groups=groups, num_blocks=num_blocks)


def make_request(
    request_id: int,
    prompt: Sequence[int] | np.ndarray,
    max_tokens: int | None = 8,
    *,
    temperature: float = 0.0,
    seed: int | None = 0,
    stop: tuple[str, ...] = (),
    sampling: dict[str, Any] | None = None,
    **fields: Any,
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed, stop=stop, **(sampling or {}))
    return Request(
        request_id=request_id,
        prompt=TokenPrompt(ids=np.asarray(prompt, dtype=np.int32)),
        sampling=params,
        stop_strings=tuple(s.encode() for s in stop),
        **fields,
    )


@dataclass
class Built:
    """An engine and its parts, as tests look at them."""

    core: EngineCore
    scheduler: Scheduler
    kv: KVManager
    executor: Executor
    clock: VirtualClock
    journal: StepJournal | None
    settings: SchedulerSettings

    def run(self, *requests: Request, max_steps: int = 10_000) -> dict[int, Finished]:
        """Submit, run to the end, and give what came out by request."""
        for request in requests:
            self.core.submit(request)
        return self.finish(max_steps)

    def finish(self, max_steps: int = 10_000) -> dict[int, Finished]:
        outputs: list[RequestOutput] = []
        for _ in range(max_steps):
            if not self.core.has_work:
                return collect(outputs)
            outputs.extend(self.step())
        raise AssertionError(f"still work after {max_steps} steps\n{self.core.dump()}")

    def step(self) -> list[RequestOutput]:
        """Sleep to the next useful moment, step, check the ledger, poison what is free."""
        wait = self.core.idle_s()
        if wait:
            self.clock.sleep(wait)
        outputs = self.core.step()
        self.kv.check()
        return outputs


@dataclass
class Finished:
    """All outputs of one request, put together."""

    token_ids: list[int]
    outputs: list[RequestOutput]

    @property
    def last(self) -> RequestOutput:
        return self.outputs[-1]

    @property
    def reason(self) -> str | None:
        return self.last.finish.value if self.last.finish is not None else None


def collect(outputs: Sequence[RequestOutput]) -> dict[int, Finished]:
    found: dict[int, Finished] = {}
    for output in outputs:
        entry = found.setdefault(output.request_id, Finished([], []))
        assert not entry.outputs or entry.last.finish is None, "an output after the end"
        entry.token_ids.extend(output.token_ids)
        entry.outputs.append(output)
    return found


def build(
    executor: Executor,
    clock: VirtualClock,
    settings: SchedulerSettings,
    *,
    cost: CostModel | None = None,
    token_bytes: Sequence[bytes] | None = None,
    drafter: Drafter | None = None,
    prefix_caching: bool = True,
    model_revision: str = "toy",
    journal: StepJournal | None = None,
    grammars: GrammarFactory | None = None,
) -> Built:
    kv = make_kv(executor.caps, settings, prefix_caching, model_revision)
    scheduler = make_scheduler(
        executor.caps,
        settings,
        kv=kv,
        cost=cost,
        token_bytes=token_bytes,
        drafter=drafter,
    )
    core = EngineCore(
        scheduler,
        executor,
        clock,
        journal,
        grammars=None
        if grammars is None
        else Grammars(grammars, vocab_size=executor.caps.vocab_size, eos_token_ids=(EOS,)),
        draw_seed=lambda: 12345,
    )
    return Built(core, scheduler, kv, executor, clock, journal, settings)


def make_kv(
    caps: ExecutorCaps, settings: SchedulerSettings, prefix_caching: bool = True, model_revision: str = "toy"
) -> KVManager:
    return KVManager(
        caps.layout,
        prefix_caching=prefix_caching,
        max_chunk_tokens=settings.max_uncommitted_tokens(caps.max_in_flight),
        model_revision=model_revision,
    )


def make_scheduler(
    caps: ExecutorCaps,
    settings: SchedulerSettings,
    *,
    kv: KVManager | None = None,
    cost: CostModel | None = None,
    token_bytes: Sequence[bytes] | None = None,
    drafter: Drafter | None = None,
    prefix_caching: bool = True,
) -> Scheduler:
    return Scheduler(
        settings,
        caps,
        kv if kv is not None else make_kv(caps, settings, prefix_caching),
        cost if cost is not None else LinearStepCost(),
        token_bytes=token_bytes,
        eos_token_ids=(EOS,),
        drafter=drafter,
        decisions=DecisionRing(),
    )


def scripted_engine(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    windows: tuple[int | None, ...] = (None,),
    vocab_size: int = VOCAB,
    depth: int = 1,
    max_rows: int = 8,
    max_tokens: int = 64,
    spec_kinds: tuple[SpecKind, ...] = (),
    drafter: Drafter | None = None,
    prefix_caching: bool = True,
    journal: StepJournal | None = None,
    grammars: GrammarFactory | None = None,
    executor: dict[str, Any] | None = None,
    cost: CostModel | None = None,
    **settings: Any,
) -> Built:
    """The toy model behind the real scheduler. `settings` are SchedulerSettings; tiny defaults."""
    layout = make_layout(num_blocks, block_size, windows)
    caps = scripted_caps(
        layout, max_rows=max_rows, max_tokens=max_tokens, vocab_size=vocab_size, depth=depth, spec_kinds=spec_kinds
    )
    settings = {"max_num_seqs": max_rows, "max_num_batched_tokens": max_tokens, "max_model_len": 256, **settings}
    model = ToyModel(vocab_size, windows)
    clock = VirtualClock()
    return build(
        ScriptedExecutor(model, caps, clock=clock, **(executor or {})),
        clock,
        SchedulerSettings(**settings),
        cost=cost,
        token_bytes=letter_bytes(vocab_size, (EOS,)),
        drafter=drafter,
        prefix_caching=prefix_caching,
        journal=journal,
        grammars=grammars,
    )


def simulated_engine(
    *,
    num_blocks: int = 4096,
    block_size: int = 16,
    depth: int = 1,
    max_rows: int = 64,
    max_tokens: int = 2048,
    cost: CostModel | None = None,
    output_lengths: dict[int, int] | None = None,
    host_drafts: bool = False,
    drafter: Drafter | None = None,
    prefix_caching: bool = True,
    journal: StepJournal | None = None,
    grammars: GrammarFactory | None = None,
    **settings: Any,
) -> Built:
    """The real scheduler in virtual time. `settings` are SchedulerSettings."""
    cost = cost if cost is not None else LinearStepCost()
    clock = VirtualClock()
    layout = make_layout(num_blocks, block_size)
    caps = simulated_caps(
        layout, max_rows=max_rows, max_tokens=max_tokens, max_in_flight=depth, host_drafts=host_drafts
    )
    oracle = seeded_oracle(caps.vocab_size, eos_token_id=EOS, output_lengths=output_lengths)
    settings = {"max_num_seqs": max_rows, "max_num_batched_tokens": max_tokens, **settings}
    return build(
        SimulatedExecutor(caps, cost, clock, oracle),
        clock,
        SchedulerSettings(**settings),
        cost=cost,
        drafter=drafter,
        prefix_caching=prefix_caching,
        journal=journal,
        grammars=grammars,
    )


def reference(request: Request, num_tokens: int, model: ToyModel) -> list[int]:
    """What the toy model says to this request alone: no cache, no batch, everything recomputed, no stop rules."""
    sampling = request.sampling
    stops = tuple(sampling.stop_token_ids) + (() if sampling.ignore_eos else (EOS,))
    how = Draw(sampling, request.choice, request.num_prompt, stops)
    return model.generate(request.initial_ids().tolist(), how, num_tokens)
