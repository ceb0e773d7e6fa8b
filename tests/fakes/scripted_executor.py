"""An executor that runs the toy model through real block tables, from nothing but encoded plans.

It is stricter than a device: every plan is encoded and decoded before use; KV entries live in a store indexed by block
and offset and are read back through the row's tables; what a slot holds is checked (group, position) when read; blocks
nobody wrote, and blocks a test calls `poison` on, hold noise; a plan is computed as late as the order allows, so that
anything freed too early is overwritten before it is read; feeds must name exactly the draw still in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.fakes.toy_model import U64, Draw, ToyModel

from paceline.contracts.kv import NULL_BLOCK, KVLayout
from paceline.contracts.ports import ExecutorCaps, SpecKind, StepShape
from paceline.contracts.request import TokenLogprob
from paceline.contracts.step import (
    NO_FEED,
    Logits,
    RowAdmit,
    RowFault,
    SampleInputs,
    StepPlan,
    StepResult,
    decode,
    encode,
)
from paceline.sim.clock import VirtualClock


class BlockMixUpError(AssertionError):
    """A row read KV that is not its own."""


@dataclass
class _Row:
    admit: RowAdmit
    tokens: list[int]
    tables: list[dict[int, int]]  # per group: logical index -> block id
    draw: Draw
    drawn_at: int = NO_FEED  # step of the last draw


@dataclass
class _Flight:
    plan: StepPlan
    inputs: SampleInputs | None = None
    sampled: bool = False
    result: StepResult | None = None


@dataclass
class ScriptedExecutor:
    """Options: `fault` names requests whose row fails when drawn, `crash_at` a step whose submission raises."""

    model: ToyModel
    caps: ExecutorCaps
    fault: Callable[[int, int], bool] | None = None  # (request id, step)
    crash_at: int | None = None
    device_ms: float = 1.0
    clock: VirtualClock | None = None  # a step moves it by `device_ms`
    draft_wrong_every: int = 3  # of the device drafter
    num_positions: int = 0  # computed so far, drafts included: the meter's independent witness
    num_steps: int = 0
    num_drafts: int = 0  # draft tokens verified
    num_accepted: int = 0
    plans: list[bytes] = field(default_factory=list)  # as received, encoded
    keep_plans: bool = False

    def __post_init__(self) -> None:
        layout = self.caps.layout
        shape = (layout.num_blocks + 1, layout.block_size)
        self._kv = np.empty(shape, dtype=U64)
        self._position = np.empty(shape, dtype=np.int64)
        self._group = np.empty(shape, dtype=np.int64)
        self._rng = np.random.default_rng(0)
        self.poison(range(layout.num_blocks + 1))
        self._rows: dict[int, _Row] = {}
        self._flights: dict[int, _Flight] = {}  # in order of submission
        self._last_step = -1
        self._transfers: dict[int, tuple[list[int], np.ndarray, int]] = {}  # id -> (blocks, content, steps to go)
        assert len(self.model.windows) == len(layout.groups)

    # --- the port

    def submit(self, plan: StepPlan) -> int:
        data = encode(plan)
        if self.keep_plans:
            self.plans.append(data)
        plan = decode(data, StepPlan)
        if plan.step == self.crash_at:
            raise RuntimeError("the device fell off the bus")
        assert plan.step > self._last_step, "steps come in order"
        assert len(self._flights) < self.caps.max_in_flight, "more plans in flight than the caps allow"
        assert plan.num_tokens <= self.caps.max_tokens
        assert len(set(plan.row.tolist())) == plan.num_rows <= self.caps.max_rows
        self._check_feeds(plan)
        self._last_step = plan.step
        self._flights[plan.step] = _Flight(plan)
        return plan.step

    def sample(self, handle: int, inputs: SampleInputs | None) -> None:
        flight = self._flights[handle]
        assert not flight.sampled, "sample() is called once"
        flight.sampled = True
        flight.inputs = decode(encode(inputs), SampleInputs) if inputs is not None else None

    def poll(self, handle: int, *, block: bool = True) -> StepResult | None:
        assert next(iter(self._flights)) == handle, "results are asked for in order"
        flight = self._flights[handle]
        assert flight.sampled, "the draw waits for sample()"
        result = self._run(flight)
        if self.clock is not None:
            self.clock.sleep(self.device_ms / 1000)
        del self._flights[handle]
        return decode(encode(result), StepResult)

    def shape(self, plan: StepPlan) -> StepShape:
        return StepShape(
            num_tokens=plan.num_tokens,
            num_rows=plan.num_rows,
            num_sampled=int(((plan.num_draft + 1) * plan.sample).sum()),
            context_tokens=int(plan.start.sum()),
        )

    def close(self) -> None:
        self._rows.clear()

    # --- for tests

    def poison(self, block_ids: Iterable[int]) -> None:
        """Overwrite blocks with noise, as if somebody else had them."""
        ids = np.fromiter(block_ids, dtype=np.int64)
        if not len(ids):
            return
        shape = (len(ids), self._kv.shape[1])
        self._kv[ids] = self._rng.integers(0, 2**63, size=shape, dtype=np.int64).astype(U64)
        self._position[ids] = -1
        self._group[ids] = -1

    def start_transfer(self, transfer_id: int, blocks: list[int], num_steps: int) -> None:
        """Read `blocks` for somebody else until the result `num_steps` steps on reports it done. Nobody may write to
        them meanwhile."""
        self._transfers[transfer_id] = (blocks, self._kv[blocks].copy(), num_steps)

    # --- the step

    def _check_feeds(self, plan: StepPlan) -> None:
        """A feed names the draw in flight that its first token comes from; no feed means the host knows that token."""
        in_flight: dict[int, int] = {}  # row -> last step in flight that draws for it
        for step, flight in self._flights.items():
            for row in flight.plan.releases.tolist():
                in_flight.pop(row, None)
            for admit in flight.plan.admits:
                in_flight.pop(admit.row, None)
            for row, sample in zip(flight.plan.row.tolist(), flight.plan.sample.tolist(), strict=True):
                if sample:
                    in_flight[row] = step
        fresh = {a.row for a in plan.admits}
        for row, feed in zip(plan.row.tolist(), plan.feed_step.tolist(), strict=True):
            expected = NO_FEED if row in fresh else in_flight.get(row, NO_FEED)
            assert feed == expected, f"row {row} of step {plan.step} says feed {feed}, in flight is {expected}"
            assert feed == NO_FEED or self.caps.device_feedback

    def _apply_columns(self, plan: StepPlan) -> None:
        for row in plan.releases.tolist():
            del self._rows[row]
        for admit in plan.admits:
            assert admit.row not in self._rows, f"row {admit.row} is taken"
            assert 0 <= admit.row < self.caps.max_rows
            tables: list[dict[int, int]] = [{} for _ in self.model.windows]
            self._rows[admit.row] = _Row(admit, admit.token_ids.tolist(), tables, Draw.of(admit))
        for src, dst in zip(plan.copy_src.tolist(), plan.copy_dst.tolist(), strict=True):
            for store in (self._kv, self._position, self._group):
                store[dst] = store[src]
        columns = (plan.new_block_group, plan.new_block_row, plan.new_block_index, plan.new_block_id)
        for group, row, index, block in zip(*(c.tolist() for c in columns), strict=True):
            assert block != NULL_BLOCK
            assert index not in self._rows[row].tables[group], "a table's entry is given once"
            self._rows[row].tables[group][index] = block

    def _run(self, flight: _Flight) -> StepResult:
        plan = flight.plan
        self._apply_columns(plan)
        self.num_steps += 1
        masks = _masks_by_row(flight.inputs, self.model.vocab_size)
        out = _Results(plan.step)
        drafts = plan.draft_ids.tolist()
        names = ("row", "start", "count", "num_draft", "want_drafts", "logits", "sample")
        draft_at = 0
        chunks = []
        # all KV of a layer is written before any is read, as a batched kernel does
        for index, start, count, num_draft, want, logits, sample in zip(
            *(getattr(plan, n).tolist() for n in names), strict=True
        ):
            row = self._rows[index]
            proposed = drafts[draft_at : draft_at + num_draft]
            draft_at += num_draft
            ids = row.tokens[start : start + count - num_draft] + proposed
            assert len(ids) == count, f"row {index}: tokens {start}..{start + count} are not all known"
            reaches_end = start + count - num_draft == len(row.tokens)
            assert reaches_end or not (sample or num_draft), "a draw before the last known token"
            chunks.append((index, row, start, ids, proposed, want, logits, sample))
        hidden = self._forward([(row, start, ids) for _, row, start, ids, *_ in chunks])
        for states, (index, row, start, ids, proposed, want, logits, sample) in zip(hidden, chunks, strict=True):
            self.num_positions += len(ids)
            if logits == Logits.ALL:
                out.prompt_logprobs[index] = self._prompt_logprobs(row, start, states)
            if not sample:
                continue
            if self.fault is not None and self.fault(row.admit.request_id, plan.step):
                out.add(index, [], [])
                out.faults.append(RowFault(row=index, code="nan", message="logits are not numbers"))
                row.drawn_at = plan.step
                row.tokens.append(0)  # whatever: the row is dead
                continue
            self._sample(out, index, row, states, proposed, want, masks.get(index))
        return out.build(self.device_ms, self._transfers_done())

    def _transfers_done(self) -> tuple[int, ...]:
        done = []
        for transfer_id, (blocks, content, steps) in list(self._transfers.items()):
            if (self._kv[blocks] != content).any():
                raise BlockMixUpError(f"blocks {blocks} were reused while transfer {transfer_id} read them")
            self._transfers[transfer_id] = (blocks, content, steps - 1)
            if steps <= 1:
                done.append(transfer_id)
                del self._transfers[transfer_id]
        return tuple(done)

    def _forward(self, chunks: Sequence[tuple[_Row, int, list[int]]]) -> list[np.ndarray]:
        positions = [np.arange(start, start + len(ids)) for _, start, ids in chunks]
        hidden = [self.model.embed(np.asarray(ids)) for _, _, ids in chunks]
        for layer in range(len(self.model.windows)):
            for (row, _, _), at, states in zip(chunks, positions, hidden, strict=True):
                self._write(layer, row, at, self.model.kv(layer, states, at))
            hidden = [
                self.model.attend(layer, states, [self._read(layer, row, p) for p in at.tolist()])
                for (row, _, _), at, states in zip(chunks, positions, hidden, strict=True)
            ]
        return hidden

    def _slots(self, layer: int, row: _Row, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = self.caps.layout.block_size
        table = row.tables[layer]
        try:
            blocks = np.asarray([table[i] for i in (positions // size).tolist()], dtype=np.int64)
        except KeyError as error:
            raise BlockMixUpError(f"request {row.admit.request_id}: no block {error} in group {layer}") from None
        return blocks, positions % size

    def _write(self, layer: int, row: _Row, positions: np.ndarray, values: np.ndarray) -> None:
        slots = self._slots(layer, row, positions)
        self._kv[slots] = values
        self._position[slots] = positions
        self._group[slots] = layer

    def _read(self, layer: int, row: _Row, position: int) -> np.ndarray:
        seen = np.arange(self.model.first_visible(layer, position), position + 1)
        slots = self._slots(layer, row, seen)
        if not ((self._position[slots] == seen).all() and (self._group[slots] == layer).all()):
            raise BlockMixUpError(
                f"request {row.admit.request_id} at position {position} of group {layer} reads slots written for "
                f"positions {self._position[slots].tolist()} of groups {sorted(set(self._group[slots].tolist()))}"
            )
        return self._kv[slots]

    def _sample(
        self,
        out: _Results,
        index: int,
        row: _Row,
        states: np.ndarray,
        proposed: list[int],
        want: int,
        masks: list[np.ndarray] | None,
    ) -> None:
        if row.admit.grammar:
            assert masks is not None, "a row with a grammar draws without its mask"
            assert len(masks) == len(proposed) + 1, "one mask for each position drawn"
        tail = states[len(states) - len(proposed) - 1 :].tolist()
        drawn: list[int] = []
        for k, state in enumerate(tail):
            allowed = masks[k] if masks is not None else None
            drawn.append(self.model.draw(int(state), len(row.tokens) - 1 + k, row.draw, allowed))
            if k < len(proposed) and proposed[k] != drawn[k]:
                break
        self.num_drafts += len(proposed)
        self.num_accepted += len(drawn) - 1
        row.tokens.extend(drawn)
        row.drawn_at = out.step
        logprobs: tuple[TokenLogprob, ...] | None = None
        if row.draw.sampling.logprobs is not None:
            logprobs = tuple(self.model.logprob(int(s), t) for s, t in zip(tail, drawn, strict=False))
        out.add(index, drawn, self._device_drafts(row, want), logprobs)

    def _device_drafts(self, row: _Row, want: int) -> list[int]:
        """A draft model that shares the target's noise: right but for every `draft_wrong_every`th position."""
        if want <= 0:
            return []
        assert "device" in self.caps.spec_kinds
        drafts = self.model.generate(row.tokens, row.draw, want)
        at = len(row.tokens)
        return [(t + (not (at + i) % self.draft_wrong_every)) % self.model.vocab_size for i, t in enumerate(drafts)]

    def _prompt_logprobs(self, row: _Row, start: int, states: np.ndarray) -> tuple[TokenLogprob, ...]:
        """Entry i: the token after position start + i, where the prompt has one."""
        last = row.draw.num_prompt - 1
        return tuple(
            self.model.logprob(int(state), row.tokens[start + i + 1])
            for i, state in enumerate(states.tolist())
            if start + i < last
        )


class _Results:
    """Columns of a StepResult under construction."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.rows: list[int] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self.drafts: list[int] = []
        self.draft_counts: list[int] = []
        self.logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        self.prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        self.faults: list[RowFault] = []

    def add(
        self, row: int, tokens: list[int], drafts: list[int], logprobs: tuple[TokenLogprob, ...] | None = None
    ) -> None:
        self.rows.append(row)
        self.counts.append(len(tokens))
        self.tokens.extend(tokens)
        self.drafts.extend(drafts)
        self.draft_counts.append(len(drafts))
        if logprobs is not None:
            self.logprobs[row] = logprobs

    def build(self, device_ms: float, transfers_done: tuple[int, ...]) -> StepResult:
        def column(values: list[int]) -> np.ndarray:
            return np.asarray(values, dtype=np.int32)

        return StepResult(
            step=self.step,
            row=column(self.rows),
            num_tokens=column(self.counts),
            tokens=column(self.tokens),
            drafts=column(self.drafts),
            num_drafts=column(self.draft_counts),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            faults=tuple(self.faults),
            transfers_done=transfers_done,
            device_ms=device_ms,
        )


def _masks_by_row(inputs: SampleInputs | None, vocab_size: int) -> dict[int, list[np.ndarray]]:
    """Row -> its masks as bool arrays [vocab], one per position drawn."""
    if inputs is None:
        return {}
    masks: dict[int, list[np.ndarray]] = {}
    for row, words in zip(inputs.mask_row.tolist(), inputs.masks, strict=True):
        bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")[:vocab_size].astype(bool)
        masks.setdefault(row, []).append(bits)
    return masks


def scripted_caps(
    layout: KVLayout,
    *,
    max_rows: int = 8,
    max_tokens: int = 64,
    vocab_size: int = 64,
    depth: int = 1,
    spec_kinds: tuple[SpecKind, ...] = (),
) -> ExecutorCaps:
    return ExecutorCaps(
        layout=layout,
        max_rows=max_rows,
        max_tokens=max_tokens,
        vocab_size=vocab_size,
        max_in_flight=depth,
        device_feedback=depth > 1,
        spec_kinds=spec_kinds,
        batch_invariant=True,
        masks=True,
    )
