"""Host time of a step, by part: what the engine costs when the device costs nothing.

A scheduler with `rows` sequences decoding and `waiting` requests behind them is stepped with an executor that answers
at once. Parts: `plan` (who runs, which blocks), `apply` (tokens, stop rules, blocks, outputs), and, when a runtime
gives it, `input build` (from the plan's columns to the model's inputs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Protocol, TypeAlias

import numpy as np

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.ports import CostModel, EngineSnapshot, ExecutorCaps, Predicted, StepShape
from paceline.contracts.request import Request, SamplingParams, TokenPrompt
from paceline.contracts.step import StepPlan, StepResult, encode
from paceline.engine.decisions import DecisionRing
from paceline.engine.kv_manager import KVManager
from paceline.engine.scheduler import Scheduler
from paceline.engine.settings import SchedulerSettings

LIMITS_MS = {1: 0.1, 32: 0.3, 256: 2.0}
"""What a step's host part may take, by decode rows."""

_ROUNDS = 3
_PROMPT_TOKENS = 64
_VOCAB = 32_000


class _FlatCost:
    """Every step takes a millisecond: the scheduler must ask somebody. Who has prices that learn measures them too."""

    def step_ms(self, shape: StepShape) -> float:
        return 1.0

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        return 0.01 * num_tokens

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        return at_most

    def predict_ttft(self, snapshot: EngineSnapshot, num_prompt: int, num_cached: int = 0) -> Predicted:
        raise NotImplementedError("nothing in a timed step asks for it")

    def observe(self, shape: StepShape, ms: float) -> None:
        pass


class InputBuild(Protocol):
    """The executor's host work for a step, if a runtime lends it: from columns to inputs, and taking the tokens in."""

    def build(self, plan: StepPlan) -> object: ...

    def append(self, result: StepResult) -> object: ...


MakeInputBuild: TypeAlias = Callable[[KVLayout, int, int], InputBuild]
"""(layout, rows, longest sequence) -> a fresh one."""


def make_result(plan: StepPlan) -> StepResult:
    """A result for a plan without drafts: each row that draws gets a token nobody stops at."""
    rows = plan.row[plan.sample > 0]
    return StepResult(
        step=plan.step,
        row=rows,
        num_tokens=np.ones(len(rows), dtype=np.int32),
        tokens=((rows * 7 + plan.step) % (_VOCAB - 1)).astype(np.int32),
        device_ms=1.0,
    )


def _layout(rows: int, num_tokens: int) -> KVLayout:
    block_size = 16
    group = KVGroupSpec(kind="full", layers=(0,), block_size=block_size, bytes_per_block=1)
    return KVLayout(groups=(group,), num_blocks=(rows + 1) * (num_tokens // block_size + 2))


def _scheduler(layout: KVLayout, rows: int, num_tokens: int, cost: CostModel) -> Scheduler:
    caps = ExecutorCaps(
        layout=layout,
        max_rows=rows,
        max_tokens=max(2048, rows + 1),
        vocab_size=_VOCAB,
    )
    settings = SchedulerSettings(max_num_seqs=rows, max_num_batched_tokens=caps.max_tokens, max_model_len=num_tokens)
    kv = KVManager(caps.layout, max_chunk_tokens=settings.max_uncommitted_tokens(caps.max_in_flight))
    return Scheduler(settings, caps, kv, cost, eos_token_ids=(_VOCAB - 1,), decisions=DecisionRing())


def _request(request_id: int, max_tokens: int) -> Request:
    ids = (np.arange(_PROMPT_TOKENS, dtype=np.int32) * 31 + request_id) % _VOCAB
    return Request(
        request_id=request_id,
        prompt=TokenPrompt(ids=ids.astype(np.int32)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0),
    )


def measure(
    rows: int,
    waiting: int,
    *,
    steps: int = 200,
    make_build: MakeInputBuild | None = None,
    make_cost: Callable[[], CostModel] | None = None,
) -> dict[str, float]:
    """Median microseconds per part over `steps` decode steps."""
    warm = 100  # until the interpreter has specialised what runs and caches are warm
    tokens = _PROMPT_TOKENS + steps + warm + 4 * rows
    layout = _layout(rows, tokens + 1)
    scheduler = _scheduler(layout, rows, tokens + 1, _FlatCost() if make_cost is None else make_cost())
    inputs = make_build(layout, rows, tokens + 1) if make_build is not None else None
    for request_id in range(rows + waiting):
        scheduler.add(_request(request_id, tokens - _PROMPT_TOKENS), 0.0)
    now = 0.0
    parts: dict[str, list[float]] = {"plan": [], "apply": [], "encode": []}
    if inputs is not None:
        parts["input build"] = []
    measured = 0
    while measured < steps + warm:
        now += 0.001
        begin = time.perf_counter()
        scheduler.expire(now)
        plan = scheduler.plan(now)
        planned = time.perf_counter()
        result = make_result(plan)
        building = time.perf_counter()
        if inputs is not None:
            inputs.build(plan)
            inputs.append(result)
        applying = time.perf_counter()
        scheduler.apply(result, now)
        scheduler.outputs()
        applied = time.perf_counter()
        if len(plan.row) < rows or int(plan.count.max()) > 1:
            continue  # still taking rows in
        measured += 1
        if measured <= warm:
            continue
        parts["plan"].append(planned - begin)
        parts["apply"].append(applied - applying)
        if inputs is not None:
            parts["input build"].append(applying - building)
        encoding = time.perf_counter()
        encode(plan)
        parts["encode"].append(time.perf_counter() - encoding)
    return {name: median(times) * 1e6 for name, times in parts.items()}


def run(
    rows: Sequence[int] = (1, 32, 256),
    waiting: int = 10_000,
    *,
    steps: int = 200,
    make_build: MakeInputBuild | None = None,
    make_cost: Callable[[], CostModel] | None = None,
) -> list[dict[str, Any]]:
    """One entry per row count, with nobody waiting and with `waiting` requests.

    The best of a few rounds over all cells: a machine that others share has slow spells of seconds, and they say
    nothing about the code. Keys: `rows`, `waiting`, `parts` (name -> median µs), `host_ms` (their sum, `encode`
    excluded: it is paid only when the executor is in another process), `limit_ms` (None where no limit is set).
    `make_build` lends the runtime's input build, to be measured with them; `make_cost` the prices that `plan` asks and
    `apply` teaches.
    """
    table: list[dict[str, Any]] = []
    cells = [(num_rows, num_waiting) for num_rows in rows for num_waiting in dict.fromkeys((0, waiting))]
    taken = [
        [measure(*cell, steps=steps, make_build=make_build, make_cost=make_cost) for cell in cells]
        for _ in range(_ROUNDS)
    ]
    for (num_rows, num_waiting), rounds in zip(cells, zip(*taken, strict=True), strict=True):
        parts, host_ms = min(((parts, _host_ms(parts)) for parts in rounds), key=lambda found: found[1])
        table.append(
            {
                "rows": num_rows,
                "waiting": num_waiting,
                "parts": parts,
                "host_ms": host_ms,
                "limit_ms": LIMITS_MS.get(num_rows),
            }
        )
    return table


def _host_ms(parts: dict[str, float]) -> float:
    return sum(us for name, us in parts.items() if name != "encode") / 1000


def render(table: Sequence[dict[str, Any]]) -> str:
    """The table as text."""
    names = list(table[0]["parts"])
    lines = ["  rows  waiting  " + "  ".join(f"{name + ' µs':>14}" for name in names) + "    host ms  limit ms"]
    for entry in table:
        cells = "  ".join(f"{entry['parts'][name]:14.1f}" for name in names)
        limit = "-" if entry["limit_ms"] is None else f"{entry['limit_ms']:g}"
        over = "" if entry["limit_ms"] is None or entry["host_ms"] <= entry["limit_ms"] else "  over"
        lines.append(f"{entry['rows']:6d}  {entry['waiting']:7d}  {cells}  {entry['host_ms']:9.3f}  {limit:>8}{over}")
    return "\n".join(lines)
