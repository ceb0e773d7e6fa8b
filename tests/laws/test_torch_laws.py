"""Law 1 on the torch executor: any schedule gives the text of one request at a time, recomputed for every token.

Tiny random models of every family in reference numerics, behind the real scheduler, KV manager and loop. The executor
sees encoded plans whose block ids are renamed at random, and what is free is filled with NaN after every step, so a
wrong block shows. Random traffic: batches, chunks, pools that hold little more than one sequence (preemption), shared
prefixes, drafts, several choices, aborts, deadlines and queue timeouts; every policy, static batching, waiting for
company.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.fakes.builders import EOS, Built, Finished, collect, make_scheduler
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.scripts import calls
from tests.fakes.stop_oracle import apply_stop_rules
from tests.fakes.tiny_models import FAMILIES, VOCAB, tiny_executor, tiny_layout, tiny_spec
from tests.fakes.torch_engines import TorchEngine, recompute, torch_engine

from paceline.contracts.kv import ceil_div
from paceline.contracts.request import FinishReason, Request, RequestOutput
from paceline.contracts.step import StepPlan
from paceline.engine.journal import Planned, StepJournal, read_events, replay
from paceline.errors import RequestError
from paceline.runtime.executor import TorchExecutor
from paceline.runtime.input_batch import StepInputs

MAX_MODEL_LEN = 40
BLOCK_SIZE = 4
TOKEN_BYTES = letter_bytes(VOCAB, (EOS,))
STEP_S = 0.001
NUM_GROUPS = {family: len(tiny_layout(tiny_spec(family), 1, BLOCK_SIZE).groups) for family in FAMILIES}
INT8_KV = {"llama, int8 KV": "llama", "gemma3, int8 KV": "gemma3"}
NUM_GROUPS |= {name: NUM_GROUPS[family] for name, family in INT8_KV.items()}
law = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
fresh = settings(law, derandomize=False, max_examples=100)


def executor_of(name: str, num_blocks: int, max_rows: int, max_tokens: int) -> TorchExecutor:
    """Of a family, or of one over a cache of int8."""
    family, kv_dtype = (INT8_KV[name], "int8") if name in INT8_KV else (name, "float32")
    return tiny_executor(family, num_blocks, max_rows, max_tokens, max_model_len=MAX_MODEL_LEN, kv_dtype=kv_dtype)


class PromptLookup:
    """Drafts what followed the newest token when it came last: right now and then."""

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> list[int]:
        seen = np.flatnonzero(token_ids[:-1] == token_ids[-1])
        found = token_ids[seen[-1] + 1 :] if len(seen) else token_ids[-3:]
        return found[:max_drafts].tolist()


@dataclass
class Script:
    family: str
    num_blocks: int
    placement: int
    drafts: int
    options: dict[str, Any]
    submits: dict[int, list[Request]]
    aborts: dict[int, int] = field(default_factory=dict)

    @property
    def requests(self) -> list[Request]:
        return [r for step in sorted(self.submits) for r in self.submits[step]]

    def build(self, journal: StepJournal | None = None) -> TorchEngine:
        executor = executor_of(self.family, self.num_blocks, max_rows=5, max_tokens=48)
        return torch_engine(
            executor,
            drafter=PromptLookup() if self.drafts else None,
            journal=journal,
            token_bytes=TOKEN_BYTES,
            placement=self.placement,
            step_s=STEP_S,
            num_draft_tokens=self.drafts,
            max_model_len=MAX_MODEL_LEN,
            **self.options,
        )


@st.composite
def scripts(draw: st.DrawFn, family: str) -> Script:
    least = NUM_GROUPS[family] * ceil_div(MAX_MODEL_LEN, BLOCK_SIZE)
    max_rows = draw(st.sampled_from([1, 3, 5, 5]))
    options = {
        "max_num_seqs": max_rows,
        "max_num_batched_tokens": draw(st.integers(max_rows + 4, 24)),
        "prefill_chunk_tokens": draw(st.sampled_from([None, 1, 3, 8])),
        "prefill_priority": draw(st.sampled_from(["decode_first", "prefill_first"])),
        "policy": draw(st.sampled_from(["priority", "fcfs", "fair"])),
        "batching": draw(st.sampled_from(["continuous", "continuous", "static"])),
        "max_wait_ms": draw(st.sampled_from([0.0, 0.0, 2.5])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "prefix_caching": draw(st.sampled_from([True, True, True, False])),
    }
    submits: dict[int, list[Request]] = {}
    next_id = 0
    for _ in range(draw(st.integers(3, 6))):
        call = draw(calls(next_id))
        next_id += len(call)
        at = draw(st.integers(0, 6))
        patience = draw(st.sampled_from([None, None, 0, 3, 8]))  # steps that the call may wait in the queue
        if patience is not None:
            call = [msgspec.structs.replace(request, queue_deadline=(at + patience) * STEP_S) for request in call]
        submits.setdefault(at, []).extend(call)
    aborts = {draw(st.integers(0, 15)): draw(st.integers(0, next_id - 1))} if draw(st.booleans()) else {}
    return Script(
        family=family,
        num_blocks=draw(st.integers(least, least + least // 2)),
        placement=draw(st.integers(0, 5)),
        drafts=draw(st.sampled_from([0, 0, 2, 3])),
        options=options,
        submits=submits,
        aborts=aborts,
    )


@dataclass
class Logits:
    """Raw logits of every draw an executor made: (request, output position) -> (draft prefix assumed, logits)."""

    seen: dict[tuple[int, int], list[tuple[tuple[int, ...], torch.Tensor]]] = field(default_factory=dict)

    def watch(self, executor: TorchExecutor) -> None:
        rows = executor.runner.rows

        def look(plan: StepPlan, inputs: StepInputs, logits: torch.Tensor) -> None:
            ends = np.cumsum(plan.num_draft)
            at = 0
            for index in inputs.sampling.tolist():
                count = int(plan.num_draft[index])
                drafts = tuple(plan.draft_ids[ends[index] - count : ends[index]].tolist())
                request_id = rows.admits[int(plan.row[index])].request_id
                for j in range(count + 1):
                    key = (request_id, int(inputs.draw_position[at]))
                    self.seen.setdefault(key, []).append((drafts[:j], logits[at].clone()))
                    at += 1

        executor.runner.watch = look


def run(script: Script, engine: TorchEngine, max_steps: int = 2000) -> tuple[dict[int, Finished], set[int]]:
    outputs: list[RequestOutput] = []
    refused: set[int] = set()
    last = max(script.submits)
    for step in range(max_steps):
        if step in script.aborts:
            engine.core.abort(script.aborts[step])
        for request in script.submits.get(step, ()):
            try:
                engine.core.submit(request)
            except RequestError:
                refused.add(request.request_id)
        if step > last and not engine.core.has_work:
            return collect(outputs), refused
        outputs.extend(engine.step())
        assert engine.core.error is None, engine.core.error.__cause__ or engine.core.error
    raise AssertionError(f"no end after {max_steps} steps\n{engine.core.dump()}")


@cache
def reference_executor(family: str) -> tuple[TorchExecutor, Logits]:
    blocks = NUM_GROUPS[family] * (ceil_div(MAX_MODEL_LEN, BLOCK_SIZE) + 1)
    executor = executor_of(family, blocks, 1, 64)
    logits = Logits()
    logits.watch(executor)
    return executor, logits


def limit_of(request: Request) -> int:
    room = MAX_MODEL_LEN - request.num_prompt - len(request.prior_output)
    wanted = request.sampling.max_tokens
    return room if wanted is None else min(room, wanted - len(request.prior_output))


def check(script: Script, finished: dict[int, Finished], refused: set[int], logits: Logits) -> None:
    """Texts and raw logits against the request alone."""
    executor, alone = reference_executor(script.family)
    for request in script.requests:
        if request.request_id in refused:
            continue
        done = finished[request.request_id]
        stops = tuple(request.sampling.stop_token_ids) + (() if request.sampling.ignore_eos else (EOS,))
        alone.seen.clear()
        drawn = recompute(executor, request, stops, limit_of(request))
        expected = apply_stop_rules(request, drawn, TOKEN_BYTES, (EOS,), limit_of(request))
        note(f"request {request.request_id}: {done.reason} {done.token_ids}, alone {expected.token_ids}")
        if done.reason in (FinishReason.ABORT, FinishReason.TIMEOUT):  # shows tokens that a stop string would yet drop
            assert done.token_ids == drawn[: len(done.token_ids)]
        else:
            assert done.token_ids == expected.token_ids
            assert done.reason == expected.finish
            assert done.last.stop_reason == expected.stop_reason
        first = len(request.prior_output)
        for position, token in enumerate(done.token_ids, start=first):
            ((_, reference),) = alone.seen[request.request_id, position]
            for drafts, got in logits.seen[request.request_id, position]:
                before = position - first - len(drafts)
                if list(drafts) == done.token_ids[before : position - first]:
                    assert torch.equal(got, reference), f"logits before output {position} ({token}) differ"


def holds_over_any_schedule(family: str, examples: settings) -> None:
    totals = {"preemptions": 0, "hits": 0, "drafted": 0, "timeouts": 0}

    @examples
    @given(scripts(family))
    def holds(script: Script) -> None:
        engine = script.build()
        logits = Logits()
        logits.watch(engine.plans.inner)
        finished, refused = run(script, engine)
        check(script, finished, refused, logits)
        count(totals, engine, logits)
        totals["timeouts"] += sum(done.reason == FinishReason.TIMEOUT for done in finished.values())

    holds()
    # short prompts rarely meet again within few examples: that they do is asked of one family
    missed = [name for name, total in totals.items() if not total and (name != "hits" or family == "llama")]
    assert not missed, f"the traffic never met one of these: {totals}"


@pytest.mark.parametrize("family", [*FAMILIES, "llama, int8 KV"])
def test_law_1_any_schedule_gives_the_text_and_the_bits_of_one_request_at_a_time(family: str) -> None:
    holds_over_any_schedule(family, settings(law, max_examples=10))


@pytest.mark.long
@pytest.mark.parametrize("family", [*FAMILIES, *INT8_KV])
def test_law_1_holds_for_new_examples(family: str) -> None:
    holds_over_any_schedule(family, fresh)


def count(totals: dict[str, int], engine: Built, logits: Logits) -> None:
    totals["preemptions"] += engine.core.stats().num_preemptions
    totals["hits"] += engine.kv.stats().hit_tokens
    totals["drafted"] += sum(len(drafts) > 0 for entries in logits.seen.values() for drafts, _ in entries)


@settings(law, max_examples=4)
@given(scripts("gemma3"))
def test_law_5_a_replay_of_the_journal_of_a_torch_run_gives_the_same_plans(script: Script) -> None:
    journal = StepJournal()
    engine = script.build(journal)
    run(script, engine)
    data = journal.to_bytes()

    def fresh() -> Any:
        return make_scheduler(
            engine.plans.caps,
            engine.settings,
            token_bytes=TOKEN_BYTES,
            drafter=PromptLookup() if script.drafts else None,
            prefix_caching=script.options["prefix_caching"],
        )

    digests = [e.digest for e in read_events(data) if isinstance(e, Planned) and e.digest]
    assert digests
    assert list(replay(data, fresh).digests) == digests
