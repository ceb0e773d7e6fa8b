"""Random scripts of traffic for the engine's laws, and the runner that checks what must hold after every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.fakes.builders import VOCAB, Built, Finished, collect, make_request, scripted_engine
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.toy_model import ToyDrafter, ToyModel

from paceline.contracts.kv import ceil_div
from paceline.contracts.request import Request, RequestOutput, expand_choices
from paceline.contracts.slo import Slo
from paceline.cost.linear import LinearStepCost
from paceline.engine.journal import StepJournal
from paceline.engine.kv_manager import KVManager

MAX_MODEL_LEN = 40
STOPS = ("ab", "dda", "c", "bbb")
TARGETS = (Slo(), Slo(), Slo(ttft_s=0.004, tpot_s=0.001), Slo(ttft_s=0.02), Slo(tpot_s=0.003), Slo(e2e_s=0.03))
DEAR_TOKENS = LinearStepCost(fixed_ms=0.1, per_token_ms=2.0)  # waiting for another's prefix pays


@dataclass
class Script:
    """An engine, and what is done to it before which step."""

    engine: dict[str, Any]
    drafts: str  # none, host or device
    submits: dict[int, list[Request]]
    aborts: dict[int, list[int]] = field(default_factory=dict)
    resets: list[int] = field(default_factory=list)

    @property
    def requests(self) -> list[Request]:
        return [r for step in sorted(self.submits) for r in self.submits[step]]

    def build(self, journal: StepJournal | None = None, **changes: Any) -> Built:
        options = {**self.engine, **changes}
        if self.drafts == "none":
            return scripted_engine(journal=journal, **options)
        model = ToyModel(VOCAB, options["windows"])
        drafter = ToyDrafter(model) if self.drafts == "host" else None
        return scripted_engine(journal=journal, spec_kinds=(self.drafts,), drafter=drafter, **options)  # type: ignore[arg-type]


@st.composite
def engines(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    windows = draw(st.sampled_from([(None,), (None, 6), (5, None), (None, 3, 7)]))
    block_size = draw(st.integers(2, 4))
    max_rows = draw(st.integers(1, 5))
    max_tokens = draw(st.integers(max_rows + 4, 24))
    # the smallest pool a whole sequence fits into, and a little to much more
    least = len(windows) * ceil_div(MAX_MODEL_LEN, block_size)
    drafts = draw(st.sampled_from(["none", "none", "host", "device"]))
    options: dict[str, Any] = {
        "windows": windows,
        "block_size": block_size,
        "num_blocks": draw(st.integers(max(2, least // 3), 2 * least)),
        "depth": draw(st.integers(1, 2)),
        "max_rows": max_rows,
        "max_tokens": max_tokens + 20,
        "max_num_batched_tokens": max_tokens,
        "max_model_len": MAX_MODEL_LEN,
        "prefill_chunk_tokens": draw(st.sampled_from([None, 1, 3, 8])),
        "policy": draw(st.sampled_from(["fcfs", "priority", "fair"])),
        "prefill_priority": draw(st.sampled_from(["decode_first", "prefill_first"])),
        "batching": draw(st.sampled_from(["continuous", "continuous", "static"])),
        "max_wait_ms": draw(st.sampled_from([0.0, 0.0, 2.5])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "wait_for_prefix": draw(st.booleans()),
        "cost": draw(st.sampled_from([None, DEAR_TOKENS])),
        "prefix_caching": draw(st.sampled_from([True, True, False])),
        "scheduling_mode": draw(st.sampled_from(["fixed", "auto"])),
        "num_draft_tokens": 0 if drafts == "none" else draw(st.integers(1, 3)),
    }
    if options["prefill_priority"] != "decode_first" or options["batching"] != "continuous":
        options["scheduling_mode"] = "fixed"
    return options, drafts


@st.composite
def calls(draw: st.DrawFn, first_id: int) -> list[Request]:
    """One call: a request, or several choices of one prompt."""
    prefix = draw(st.sampled_from([[], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12], [20] * 9]))
    tail = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7))
    max_tokens = draw(st.integers(1, 12))
    num_choices = draw(st.sampled_from([1, 1, 1, 2, 3]))
    deadline = draw(st.sampled_from([None, None, None, 0.02]))
    request = make_request(
        first_id,
        [*prefix, *tail],
        max_tokens,
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        stop=tuple(draw(st.sampled_from([[], [], ["ab"], ["dda", "c"], list(STOPS)]))),
        sampling={
            "min_tokens": draw(st.integers(0, min(3, max_tokens))),
            "n": num_choices,
            "ignore_eos": draw(st.booleans()),
            "stop_token_ids": tuple(draw(st.sampled_from([[], [3], [5, 6]]))),
            "include_stop_str_in_output": draw(st.sampled_from([False, False, True])),
            "logprobs": draw(st.sampled_from([None, None, 0])),
        },
        priority=draw(st.integers(0, 2)),
        tenant=draw(st.sampled_from(["x", "y"])),
        cache_salt=draw(st.sampled_from([b"", b"", b"salt"])),
        deadline=deadline,
        slo=draw(st.sampled_from(TARGETS)),
        prior_output=tuple(draw(st.sampled_from([[], [], [], [2, 13]]))),
    )
    return expand_choices(request, range(first_id + 1, first_id + num_choices))


@st.composite
def scripts(draw: st.DrawFn, *, disturb: bool = True) -> Script:
    options, drafts = draw(engines())
    submits: dict[int, list[Request]] = {}
    next_id = 0
    for _ in range(draw(st.integers(1, 6))):
        call = draw(calls(next_id))
        next_id += len(call)
        submits.setdefault(draw(st.sampled_from([0, 0, 0, 1, 2, 3, 5, 8, 12])), []).extend(call)
    aborts: dict[int, list[int]] = {}
    resets: list[int] = []
    if disturb:
        for victim in draw(st.lists(st.integers(0, next_id - 1), max_size=3)):
            aborts.setdefault(draw(st.integers(0, 20)), []).append(victim)
        resets = draw(st.lists(st.integers(0, 20), max_size=1))
    return Script(options, drafts, submits, aborts, resets)


@dataclass
class Run:
    built: Built
    finished: dict[int, Finished]
    refused: set[int]
    num_steps: int


def free_blocks(kv: KVManager) -> list[int]:
    """Ids with no content anybody may still read."""
    pool = kv._pool
    busy = set(pool._cached) | set(pool._limbo) | {block for block, held in enumerate(pool._refs) if held}
    return [block for block in range(1, pool.num_blocks + 1) if block not in busy]


def run_script(script: Script, journal: StepJournal | None = None, max_steps: int = 3000, **changes: Any) -> Run:
    """Run to the end. After every step: the ledger balances, free blocks are poisoned, work moves on."""
    from paceline.errors import RequestError

    built = script.build(journal, **changes)
    executor = built.executor
    assert isinstance(executor, ScriptedExecutor)
    outputs: list[RequestOutput] = []
    refused: set[int] = set()
    last_submit = max(script.submits)
    for step in range(max_steps):
        for victim in script.aborts.get(step, ()):
            built.core.abort(victim)
        for request in script.submits.get(step, ()):
            try:
                built.core.submit(request)
            except RequestError:
                refused.add(request.request_id)
        if step in script.resets:
            built.core.reset_prefix_cache()
        if step > last_submit and not built.core.has_work:
            return Run(built, collect(outputs), refused, step)
        outputs.extend(built.step())
        assert built.core.error is None, built.core.error.__cause__ or built.core.error
        stats = built.kv.stats()
        assert stats.free + stats.cached + stats.held + stats.limbo == stats.total
        executor.poison(free_blocks(built.kv))
    raise AssertionError(f"no end after {max_steps} steps\n{built.core.dump()}")


def int32(values: list[int]) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)
