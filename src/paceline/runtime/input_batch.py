"""Rows of the executor, and a step's tensors built from them.

A row holds what a plan does not repeat: token ids, block tables, sampling. Everything is a table with one line per
row, allocated once; applying a plan and building its inputs are a few numpy operations whatever the number of rows.

At one row each of those operations costs a microsecond or two whatever it computes, and so does each new tensor. So
the common step, where each row computes one position, fills tensors that the step before has left (`_DecodeFrame`).

Shapes: R rows and T positions in the step, S draws, G KV groups, N blocks per row (padded to the step's longest).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline.contracts.kv import NULL_BLOCK, KVLayout, ceil_div
from paceline.contracts.step import RowAdmit, StepPlan
from paceline.runtime import noise
from paceline.runtime.forward_context import AttentionMetadata, GroupMetadata
from paceline.runtime.logit_rules import RowRules
from paceline.runtime.sampler import Draws


@dataclass(slots=True)
class StepInputs:
    """One step as tensors, and which positions draw. Valid until the next `InputBatch.build`, which reuses memory."""

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    attention: AttentionMetadata
    first: np.ndarray  # [R + 1] int64: first of the T positions of each row
    sampling: np.ndarray  # rows (indices into the plan) that draw
    num_draws: np.ndarray  # per entry of `sampling`: drafts + 1
    draw_at: np.ndarray  # [S] int64: which of the T positions each draw comes from
    draw_row: np.ndarray  # [S] int64: row of each draw
    draw_position: np.ndarray  # [S] int64: output position p of each draw


class _DecodeFrame:
    """Arrays of a step in which each of `num_rows` rows computes one position, and tensors over the same memory.

    Kept as long as steps have this shape, and filled anew by each of them.
    """

    def __init__(self, num_rows: int, num_groups: int, width: int) -> None:
        self.shape = (num_rows, width)
        self.positions = np.empty(num_rows, dtype=np.int64)
        self.input_ids = np.empty(num_rows, dtype=np.int64)
        self.seq_lens = np.empty(num_rows, dtype=np.int32)
        self.slots = np.empty((num_groups, num_rows), dtype=np.int64)
        self.tables = np.empty((num_groups, num_rows, width), dtype=np.int32)
        self.counts = np.ones(num_rows, dtype=np.int64)
        self.first = np.arange(num_rows + 1)
        self.input_ids_tensor = torch.from_numpy(self.input_ids)
        self.positions_tensor = torch.from_numpy(self.positions)
        self.seq_lens_tensor = torch.from_numpy(self.seq_lens)
        self.query_start_loc = torch.from_numpy(self.first.astype(np.int32))
        self.groups = [
            (torch.from_numpy(slots), torch.from_numpy(tables))
            for slots, tables in zip(self.slots, self.tables, strict=True)
        ]


class InputBatch:
    """All rows. `max_model_len` bounds a row's tokens."""

    def __init__(self, layout: KVLayout, *, max_rows: int, max_model_len: int, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self._on_host = device.type == "cpu"
        self.max_blocks = ceil_div(max_model_len, layout.block_size)
        # not touched until used, so a long max_model_len costs address space only
        self.tokens = np.empty((max_rows, (self.max_blocks + 1) * layout.block_size), dtype=np.int32)
        self.tables = np.zeros((len(layout.groups), max_rows, self.max_blocks), dtype=np.int32)
        self.num_tokens = np.zeros(max_rows, dtype=np.int64)
        self.num_prompt = np.zeros(max_rows, dtype=np.int64)
        self._frame = _DecodeFrame(0, len(layout.groups), 0)
        windows = [max_model_len + 1 if g.window is None else g.window for g in layout.groups]
        self._windows = np.asarray(windows)[:, None] if any(g.window is not None for g in layout.groups) else None
        self._hidden = np.zeros((len(layout.groups), max_rows), dtype=np.int64)  # blocks already behind the window
        self.greedy = np.zeros(max_rows, dtype=bool)
        self.plain = np.zeros(max_rows, dtype=bool)  # greedy, and nothing else asked for
        self.temperature = np.ones(max_rows, dtype=np.float32)
        self.top_k = np.zeros(max_rows, dtype=np.int64)
        self.top_p = np.ones(max_rows)
        self.min_p = np.zeros(max_rows)
        self.typical_p = np.ones(max_rows)
        self.keys = np.zeros(max_rows, dtype=np.uint64)
        self.admits: dict[int, RowAdmit] = {}
        self.rules: dict[int, RowRules] = {}

    def apply(self, plan: StepPlan) -> None:
        """Releases, admissions and new blocks. Copies move memory, not tables: the runner does them."""
        for row in plan.releases.tolist():
            self.admits.pop(row, None)
            self.rules.pop(row, None)
        for admit in plan.admits:
            self._admit(admit)
        if len(plan.new_block_id):
            self.tables[plan.new_block_group, plan.new_block_row, plan.new_block_index] = plan.new_block_id

    def _admit(self, admit: RowAdmit) -> None:
        row, s = admit.row, admit.sampling
        self.admits[row] = admit
        size = len(admit.token_ids)
        self.tokens[row, :size] = admit.token_ids
        self.num_tokens[row] = size
        self.num_prompt[row] = admit.num_prompt
        self.tables[:, row] = NULL_BLOCK
        self._hidden[:, row] = 0
        greedy = s.greedy or s.top_k == 1
        self.greedy[row] = greedy
        self.temperature[row] = 1.0 if greedy else s.temperature
        self.top_k[row] = max(0, s.top_k)
        self.top_p[row] = s.top_p
        self.min_p[row] = s.min_p
        self.typical_p[row] = s.typical_p
        self.keys[row] = 0 if greedy else noise.choice_key(s.seed or 0, admit.choice)
        rules = RowRules.of(admit, self.device)
        if rules is None:
            self.rules.pop(row, None)
        else:
            self.rules[row] = rules
        self.plain[row] = greedy and rules is None and s.logprobs is None and not admit.grammar

    def build(self, plan: StepPlan) -> StepInputs:
        """Tensors of the plan's rows. Call after `apply`."""
        if max(plan.count.tolist()) == 1:
            return self._build_decode(plan)
        row, count = plan.row, plan.count
        context = plan.start.astype(np.int64)
        first = np.zeros(len(row) + 1, dtype=np.int64)
        count.cumsum(out=first[1:])
        token_row = row.repeat(count)
        positions = np.arange(first[-1], dtype=np.int64) + (context - first[:-1]).repeat(count)
        input_ids = self.tokens[token_row, positions].astype(np.int64)
        if len(plan.draft_ids):
            input_ids[self._draft_slots(plan, first)] = plan.draft_ids
        sampling = plan.sample.nonzero()[0]
        draw_row, draw_at = row[sampling], first[sampling + 1] - 1
        num_draws = plan.num_draft[sampling] + 1
        if len(plan.draft_ids):
            step = np.arange(num_draws.sum()) - (num_draws.cumsum() - num_draws).repeat(num_draws)
            draw_at = (draw_at - num_draws + 1).repeat(num_draws) + step
            draw_row = draw_row.repeat(num_draws)
        return StepInputs(
            input_ids=self.to_device(input_ids),
            positions=self.to_device(positions),
            attention=self._attention(plan, token_row, positions, first, context),
            first=first,
            sampling=sampling,
            num_draws=num_draws,
            draw_at=draw_at,
            draw_row=draw_row,
            draw_position=positions[draw_at] + 1 - self.num_prompt[draw_row],
        )

    def _build_decode(self, plan: StepPlan) -> StepInputs:
        """The same where every row computes one position, so that a place along T is a place along R."""
        row, block_size = plan.row, self.layout.block_size
        num_rows, width = len(row), max(plan.start.tolist()) // block_size + 1
        frame = self._frame
        if frame.shape != (num_rows, width):
            frame = self._frame = _DecodeFrame(num_rows, len(self.layout.groups), width)
        positions = frame.positions
        positions[:] = plan.start
        if self._windows is not None:
            self._slide(row, positions)
        if num_rows == 1:
            self._fill_one(frame, int(row[0]), int(positions[0]), width)
        else:
            frame.input_ids[:] = self.tokens[row, positions]
            np.add(plan.start, 1, out=frame.seq_lens)
            np.multiply(self.tables[:, row, positions // block_size], block_size, out=frame.slots)
            frame.slots += positions % block_size
            frame.tables[:] = self.tables[:, row, :width]
        if 0 in plan.sample.tolist():
            sampling = plan.sample.nonzero()[0]
            draw_row, last = row[sampling], positions[sampling]
        else:
            sampling, draw_row, last = frame.first[:-1], row, positions
        return StepInputs(
            input_ids=self._on_device(frame.input_ids_tensor),
            positions=self._on_device(frame.positions_tensor),
            attention=AttentionMetadata(
                query_start_loc=self._on_device(frame.query_start_loc),
                seq_lens=self._on_device(frame.seq_lens_tensor),
                query_lens=frame.counts,
                context_lens=positions,
                groups=tuple([GroupMetadata(self._on_device(s), self._on_device(t)) for s, t in frame.groups]),
            ),
            first=frame.first,
            sampling=sampling,
            num_draws=frame.counts[: len(sampling)],
            draw_at=sampling,
            draw_row=draw_row,
            draw_position=last + 1 - self.num_prompt[draw_row],
        )

    def _fill_one(self, frame: _DecodeFrame, row: int, position: int, width: int) -> None:
        """One stream is the commonest step there is, and plain indices take a third of the time of index arrays."""
        block, offset = divmod(position, self.layout.block_size)
        frame.input_ids[0] = self.tokens[row, position]
        frame.seq_lens[0] = position + 1
        table = self.tables[:, row]
        np.multiply(table[:, block, None], self.layout.block_size, out=frame.slots)
        frame.slots += offset
        frame.tables[:, 0] = table[:, :width]

    def _draft_slots(self, plan: StepPlan, first: np.ndarray) -> np.ndarray:
        """Which of the T positions hold the plan's drafts."""
        size = plan.num_draft
        before = size.cumsum() - size
        slots: np.ndarray = (first[1:] - size - before).repeat(size) + np.arange(len(plan.draft_ids))
        return slots

    def _attention(
        self, plan: StepPlan, token_row: np.ndarray, positions: np.ndarray, first: np.ndarray, context: np.ndarray
    ) -> AttentionMetadata:
        if self._windows is not None:
            self._slide(plan.row, context)
        block_size = self.layout.block_size
        ends = context + plan.count
        width = (max(ends.tolist()) - 1) // block_size + 1
        slots = self.tables[:, token_row, positions // block_size].astype(np.int64)  # [G, T]
        slots *= block_size
        slots += positions % block_size
        tables = np.ascontiguousarray(self.tables[:, plan.row, :width])  # [G, R, N]
        return AttentionMetadata(
            query_start_loc=self.to_device(first.astype(np.int32)),
            seq_lens=self.to_device(ends.astype(np.int32)),
            query_lens=plan.count.astype(np.int64),
            context_lens=context,
            groups=tuple(GroupMetadata(self.to_device(slots[g]), self.to_device(tables[g])) for g in range(len(slots))),
        )

    def _slide(self, rows: np.ndarray, context: np.ndarray) -> None:
        """Point what no query of this step sees any more at the null block: the pool may have given it away."""
        assert self._windows is not None
        # [G, R] logical index of the first block that the row's first query still sees, 0 or less: all of them
        behind = (context - self._windows + 1) // self.layout.block_size
        hidden = self._hidden[:, rows]
        for group, at in zip(*(behind > hidden).nonzero(), strict=True):
            row = rows[at]
            self.tables[group, row, hidden[group, at] : behind[group, at]] = NULL_BLOCK
            self._hidden[group, row] = behind[group, at]

    def draws(self, inputs: StepInputs) -> Draws:
        """Sampling columns of the step's draws."""
        row = inputs.draw_row
        multiplier, offset = noise.position_keys(self.keys[row], inputs.draw_position)
        return Draws(
            greedy=self.greedy[row],
            temperature=self.temperature[row],
            top_k=self.top_k[row],
            top_p=self.top_p[row],
            min_p=self.min_p[row],
            typical_p=self.typical_p[row],
            multiplier=multiplier,
            offset=offset,
        )

    def append(self, row: int, tokens: list[int]) -> None:
        """Tokens that became part of a row: accepted drafts and the draw."""
        size = int(self.num_tokens[row])
        self.tokens[row, size : size + len(tokens)] = tokens
        self.num_tokens[row] = size + len(tokens)
        rules = self.rules.get(row)
        if rules is not None:
            rules.push(tokens)

    def append_one_each(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """The same for one token per row, rows without rules."""
        size = self.num_tokens[rows]
        self.tokens[rows, size] = tokens
        self.num_tokens[rows] = size + 1

    def to_device(self, array: np.ndarray) -> torch.Tensor:
        """An array as a tensor; shares memory on the CPU."""
        return self._on_device(torch.from_numpy(array))

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._on_host else tensor.to(self.device, non_blocking=True)
