"""Rows of the executor, and a step's tensors built from them.

A row holds what a plan does not repeat: token ids, block tables, sampling. Everything is a table with one line per
row, allocated once; applying a plan and building its inputs are a few numpy operations whatever the number of rows.

Shapes: R rows and T positions in the step, S draws, G KV groups, N blocks per row (padded to the step's longest).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline.contracts.kv import NULL_BLOCK, KVLayout, ceil_div
from paceline.contracts.step import NO_FEED, RowAdmit, StepPlan
from paceline.runtime import noise
from paceline.runtime.forward_context import AttentionMetadata, GroupMetadata
from paceline.runtime.logit_rules import RowRules
from paceline.runtime.sampler import Draws


@dataclass(slots=True)
class StepInputs:
    """One step as tensors, and which positions draw."""

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    attention: AttentionMetadata
    first: np.ndarray  # [R + 1] int64: first of the T positions of each row
    sampling: np.ndarray  # rows (indices into the plan) that draw
    num_draws: np.ndarray  # per entry of `sampling`: drafts + 1
    draw_at: np.ndarray  # [S] int64: which of the T positions each draw comes from
    draw_row: np.ndarray  # [S] int64: row of each draw
    draw_position: np.ndarray  # [S] int64: output position p of each draw


class InputBatch:
    """All rows. `max_model_len` bounds a row's tokens."""

    def __init__(self, layout: KVLayout, *, max_rows: int, max_model_len: int, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self.max_blocks = ceil_div(max_model_len, layout.block_size)
        # not touched until used, so a long max_model_len costs address space only
        self.tokens = np.empty((max_rows, (self.max_blocks + 1) * layout.block_size), dtype=np.int32)
        self.tables = np.zeros((len(layout.groups), max_rows, self.max_blocks), dtype=np.int32)
        self.num_tokens = np.zeros(max_rows, dtype=np.int64)
        self.num_prompt = np.zeros(max_rows, dtype=np.int64)
        self._sliding = [(g, spec) for g, spec in enumerate(layout.groups) if spec.window is not None]
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
        row, start, count = plan.row, plan.start, plan.count
        num_rows = len(row)
        context = start.astype(np.int64)
        ends = context + count
        first = np.zeros(num_rows + 1, dtype=np.int64)
        np.cumsum(count, out=first[1:])
        assert (plan.feed_step == NO_FEED).all() or (ends <= self.num_tokens[row]).all(), "a token in flight is needed"
        if int(first[-1]) == num_rows:  # one position each: the common decode step
            token_row, positions = row, context
        else:
            token_row = np.repeat(row, count)
            positions = np.arange(first[-1], dtype=np.int64) + np.repeat(context - first[:-1], count)
        input_ids = self.tokens[token_row, positions].astype(np.int64)
        if len(plan.draft_ids):
            input_ids[self._draft_slots(plan, first)] = plan.draft_ids
        sampling = np.flatnonzero(plan.sample)
        num_draws = plan.num_draft[sampling] + 1
        draw_at, draw_row = first[sampling + 1] - 1, row[sampling]
        draw_position = self.num_tokens[draw_row] - self.num_prompt[draw_row]
        if len(plan.draft_ids):
            step = np.arange(num_draws.sum()) - np.repeat(np.cumsum(num_draws) - num_draws, num_draws)
            draw_at = np.repeat(draw_at - num_draws + 1, num_draws) + step
            draw_row = np.repeat(draw_row, num_draws)
            draw_position = np.repeat(draw_position, num_draws) + step
        return StepInputs(
            input_ids=self.to_device(input_ids),
            positions=self.to_device(positions),
            attention=self._attention(plan, token_row, positions, first, context, ends),
            first=first,
            sampling=sampling,
            num_draws=num_draws,
            draw_at=draw_at,
            draw_row=draw_row,
            draw_position=draw_position,
        )

    def _draft_slots(self, plan: StepPlan, first: np.ndarray) -> np.ndarray:
        """Which of the T positions hold the plan's drafts."""
        size = plan.num_draft
        before = np.cumsum(size) - size
        return np.repeat(first[1:] - size - before, size) + np.arange(len(plan.draft_ids))

    def _attention(
        self,
        plan: StepPlan,
        token_row: np.ndarray,
        positions: np.ndarray,
        first: np.ndarray,
        context: np.ndarray,
        ends: np.ndarray,
    ) -> AttentionMetadata:
        if self._sliding:
            self._slide(plan.row, context)
        block_size = self.layout.block_size
        width = ceil_div(int(ends.max()), block_size)
        block, offset = np.divmod(positions, block_size)
        slots = self.tables[:, token_row, block] * np.int64(block_size) + offset  # [G, T]
        tables = self.tables[:, plan.row, :width]  # [G, R, N], a copy
        groups = zip(self.to_device(slots).unbind(0), self.to_device(tables).unbind(0), strict=True)
        return AttentionMetadata(
            query_start_loc=self.to_device(first.astype(np.int32)),
            seq_lens=self.to_device(ends.astype(np.int32)),
            query_lens=tuple(plan.count.tolist()),
            context_lens=tuple(context.tolist()),
            groups=tuple(GroupMetadata(s, t) for s, t in groups),
        )

    def _slide(self, rows: np.ndarray, context: np.ndarray) -> None:
        """Point what no query of this step sees any more at the null block: the pool may have given it away."""
        for group, spec in self._sliding:
            assert spec.window is not None
            behind = np.maximum(0, context - spec.window + 1) // spec.block_size
            moved = np.flatnonzero(behind > self._hidden[group, rows])
            for at in moved.tolist():
                row = rows[at]
                self.tables[group, row, self._hidden[group, row] : behind[at]] = NULL_BLOCK
                self._hidden[group, row] = behind[at]

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
        self.tokens[rows, self.num_tokens[rows]] = tokens
        self.num_tokens[rows] += 1

    def to_device(self, array: np.ndarray) -> torch.Tensor:
        """A fresh array as a tensor; shares memory on the CPU."""
        return torch.from_numpy(array).to(self.device, non_blocking=True)
