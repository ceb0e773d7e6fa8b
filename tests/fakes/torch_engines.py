"""The torch executor behind the real scheduler, and the text of one request at a time to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from tests.fakes.builders import Built, build, make_layout, make_request
from tests.fakes.history_model import HistoryCache, HistoryModel
from tests.fakes.plans import make_plan
from tests.fakes.scripts import free_blocks

from paceline.contracts.kv import KVLayout
from paceline.contracts.ports import Drafter, ExecutorCaps, GrammarFactory, Handle, StepShape
from paceline.contracts.request import Request
from paceline.contracts.step import RowAdmit, SampleInputs, StepPlan, StepResult, decode, encode
from paceline.engine.journal import StepJournal
from paceline.engine.settings import SchedulerSettings
from paceline.runtime.executor import TorchExecutor
from paceline.runtime.input_batch import InputBatch
from paceline.runtime.model_runner import ModelRunner
from paceline.sim import VirtualClock

MIXES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "sampling": {"top_p": 0.9, "top_k": 20}},
    {"temperature": 1.3, "sampling": {"min_p": 0.05, "typical_p": 0.9}},
    {"temperature": 0.0, "sampling": {"repetition_penalty": 1.4, "presence_penalty": 0.3}},
    {"temperature": 1.0, "sampling": {"frequency_penalty": 0.7, "logit_bias": {5: 2.0, 9: -4.0}, "min_tokens": 4}},
]


def make_requests(num: int = 12, max_tokens: int = 14) -> list[Request]:
    rng = np.random.default_rng(3)
    shared = rng.integers(8, 48, 13).tolist()
    requests = []
    for index in range(num):
        prompt = (shared if index % 2 else []) + rng.integers(8, 48, 1 + index).tolist()
        requests.append(make_request(index, prompt, max_tokens, seed=index, **MIXES[index % len(MIXES)]))
    return requests


def history_executor(
    num_blocks: int = 64,
    max_rows: int = 8,
    max_tokens: int = 64,
    *,
    windows: Sequence[int | None] = (None,),
    block_size: int = 4,
    vocab_size: int = 48,
    max_model_len: int = 256,
) -> TorchExecutor:
    layout = make_layout(num_blocks, block_size, windows)
    cache = HistoryCache(layout)
    rows = InputBatch(layout, max_rows=max_rows, max_model_len=max_model_len, device=torch.device("cpu"))
    runner = ModelRunner(HistoryModel(cache, windows, vocab_size), cache, rows, vocab_size=vocab_size)
    return TorchExecutor(runner, layout, max_rows=max_rows, max_tokens=max_tokens, batch_invariant=True)


class EncodedPlans:
    """An executor that sees only encoded plans, with block ids renamed: placement must not matter."""

    def __init__(self, inner: TorchExecutor, seed: int = 0) -> None:
        self.inner = inner
        self.caps: ExecutorCaps = inner.caps
        order = np.random.default_rng(seed).permutation(inner.caps.layout.num_blocks) + 1
        self.names = np.concatenate([[0], order]).astype(np.int32)

    def submit(self, plan: StepPlan) -> Handle:
        renamed = msgspec.structs.replace(
            plan,
            new_block_id=self.names[plan.new_block_id],
            copy_src=self.names[plan.copy_src],
            copy_dst=self.names[plan.copy_dst],
        )
        return self.inner.submit(decode(encode(renamed), StepPlan))

    def sample(self, handle: Handle, inputs: SampleInputs | None) -> None:
        self.inner.sample(handle, inputs)

    def poll(self, handle: Handle, *, block: bool = True) -> StepResult | None:
        result = self.inner.poll(handle, block=block)
        return None if result is None else decode(encode(result), StepResult)

    def shape(self, plan: StepPlan) -> StepShape:
        return self.inner.shape(plan)

    def close(self) -> None:
        self.inner.close()

    def poison(self, blocks: Iterable[int]) -> None:
        cache: Any = self.inner.runner.cache
        cache.poison([int(self.names[b]) for b in blocks])


@dataclass
class TorchEngine(Built):
    """An engine whose free blocks are poisoned after every step. A step takes `step_s` seconds of its clock."""

    plans: EncodedPlans
    step_s: float

    def step(self) -> list[Any]:
        outputs = super().step()
        self.clock.sleep(self.step_s)
        self.plans.poison(free_blocks(self.kv))
        return outputs


def torch_engine(
    executor: TorchExecutor,
    *,
    drafter: Drafter | None = None,
    prefix_caching: bool = True,
    journal: StepJournal | None = None,
    token_bytes: Sequence[bytes] | None = None,
    grammars: GrammarFactory | None = None,
    placement: int = 0,
    step_s: float = 0.0,
    **settings: Any,
) -> TorchEngine:
    clock = VirtualClock()
    plans = EncodedPlans(executor, placement)
    caps = executor.caps
    settings = {
        "max_num_seqs": caps.max_rows,
        "max_num_batched_tokens": caps.max_tokens,
        "max_model_len": 64,
        **settings,
    }
    built = build(
        plans,
        clock,
        SchedulerSettings(**settings),
        token_bytes=token_bytes,
        drafter=drafter,
        prefix_caching=prefix_caching,
        journal=journal,
        grammars=grammars,
    )
    return TorchEngine(**vars(built), plans=plans, step_s=step_s)


def recompute(executor: TorchExecutor, request: Request, stops: tuple[int, ...], num_tokens: int) -> list[int]:
    """`num_tokens` draws of a request alone: for each, everything known is computed anew in one chunk."""
    layout: KVLayout = executor.caps.layout
    known = request.initial_ids().tolist()
    drawn: list[int] = []
    for step in range(num_tokens):
        ids = known + drawn
        admit = RowAdmit(
            row=0,
            request_id=request.request_id,
            epoch=0,
            choice=request.choice,
            token_ids=np.asarray(ids, dtype=np.int32),
            num_prompt=request.num_prompt,
            sampling=request.sampling,
            stop_token_ids=stops,
        )
        blocks, next_block = [], 1
        for group in range(len(layout.groups)):
            for index in range(-(-len(ids) // layout.block_size)):
                blocks.append((group, 0, index, next_block))
                next_block += 1
        assert next_block - 1 <= layout.num_blocks, "the reference needs a larger pool"
        plan = make_plan(step, [(0, 0, len(ids), True)], admits=[admit], blocks=blocks, releases=[0] if step else ())
        handle = executor.submit(plan)
        executor.sample(handle, None)
        result = executor.poll(handle)
        assert result is not None
        assert not result.faults
        drawn += result.tokens.tolist()
    return drawn
