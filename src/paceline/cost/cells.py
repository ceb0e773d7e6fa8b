"""The sizes of step that a calibration times, and the plans that have those sizes.

A cell is so many decoding rows with so much context each, and a chunk of one prompt behind cached positions. The grid
has lone decodes, batches at two contexts, chunks alone, chunks far into a prompt, and both together; the held-out cells
lie between and are never fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from paceline.contracts.kv import KVLayout, ceil_div
from paceline.contracts.ports import StepShape, joined, prefill_shape
from paceline.contracts.request import SamplingParams
from paceline.contracts.step import NO_FEED, Logits, RowAdmit, StepPlan
from paceline.cost.features import decode_shape

_NONE = np.empty(0, dtype=np.int32)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a step may hold."""

    max_rows: int
    max_tokens: int  # positions of a step
    max_model_len: int  # positions of a sequence
    num_blocks: int  # of the KV cache
    block_size: int


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One size of step. `sampled`: the chunk ends its prompt and draws."""

    rows: int = 0
    context: int = 0
    chunk: int = 0
    cached: int = 0
    sampled: bool = True

    @property
    def shape(self) -> StepShape:
        if not self.chunk:
            return decode_shape(self.rows, self.context)
        chunk = prefill_shape(self.chunk, self.cached, sampled=self.sampled)
        return joined(decode_shape(self.rows, self.context), chunk) if self.rows else chunk

    def __str__(self) -> str:
        decodes = f"{self.rows} rows at {self.context}" if self.rows else ""
        end = "" if self.sampled else ", no draw"
        chunk = f"{self.chunk} positions behind {self.cached}{end}" if self.chunk else ""
        return " and ".join(part for part in (decodes, chunk) if part)


PROBE = Cell(rows=1, context=64)


def grid(limits: Limits) -> list[Cell]:
    """The cells a calibration fits, those that do not fit `limits` left out. The first, short and common, also tells
    whether the machine changed while the others were timed."""
    far, rows, chunk = _reach(limits)
    batches = _doubling(2, rows)
    some = max(1, rows // 2)
    cells = [PROBE, Cell(rows=1, context=far)]
    cells += [Cell(rows=n, context=64) for n in batches]
    cells += [Cell(rows=n, context=far // 2) for n in batches[-2:]]
    cells += [Cell(chunk=n) for n in _doubling(4, chunk)]
    cells += [Cell(chunk=n, sampled=False) for n in (min(64, chunk), chunk)]
    cells += [Cell(chunk=n, cached=far - n) for n in (16, 64, min(256, chunk)) if far > n]
    cells += [Cell(rows=n, context=64, chunk=c) for n in (1, some) for c in (16, min(128, chunk))]
    return _that_fit(cells, limits)


def held_out(limits: Limits) -> list[Cell]:
    """Cells between those of the grid."""
    far, rows, chunk = _reach(limits)
    third = max(1, rows // 3)
    cells = [
        Cell(rows=third, context=far // 4),
        Cell(rows=max(1, 2 * rows // 3), context=far // 3),
        Cell(rows=1, context=far // 3),
        Cell(chunk=max(2, chunk // 3)),
        Cell(chunk=max(2, 2 * chunk // 3), cached=far // 4),
        Cell(chunk=24, cached=far // 2, sampled=False),
        Cell(chunk=48),
        Cell(rows=third, context=far // 3, chunk=max(2, chunk // 3)),
        Cell(rows=1, context=far // 5, chunk=40, cached=far // 5),
    ]
    known = {cell.shape for cell in grid(limits)}
    return [cell for cell in _that_fit(cells, limits) if cell.shape not in known]


def _reach(limits: Limits) -> tuple[int, int, int]:
    """A long context, the rows of a full step, the longest chunk."""
    far = min(1024, limits.max_model_len - 2, limits.num_blocks * limits.block_size // 2)
    return max(1, far), min(64, limits.max_rows), min(512, limits.max_tokens, max(1, far))


def _doubling(first: int, last: int) -> list[int]:
    """first, 2 first, ... and last."""
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return [*found, last] if last > 0 else found


def _that_fit(cells: Sequence[Cell], limits: Limits) -> list[Cell]:
    found: list[Cell] = []
    for cell in cells:
        ends = [cell.context + 1] * cell.rows + ([cell.cached + cell.chunk] if cell.chunk else [])
        blocks = sum(ceil_div(end, limits.block_size) for end in ends)
        fits = (
            len(ends) <= limits.max_rows
            and cell.rows + cell.chunk <= limits.max_tokens
            and max(ends) < limits.max_model_len
            and blocks <= limits.num_blocks
            and min(cell.context, cell.cached) >= 0
        )
        if fits and cell.shape not in [other.shape for other in found]:
            found.append(cell)
    return found


def cell_plan(cell: Cell, layout: KVLayout, step: int) -> StepPlan:
    """A plan of that size, every row admitted anew with blocks of its own: the same plan can be run again and again.

    What the cache holds there does not matter for time. Draws are greedy.
    """
    starts = [cell.context] * cell.rows + ([cell.cached] if cell.chunk else [])
    counts = [1] * cell.rows + ([cell.chunk] if cell.chunk else [])
    draws = [1] * cell.rows + ([int(cell.sampled)] if cell.chunk else [])
    sampling = SamplingParams(seed=0, temperature=0.0)
    admits: list[RowAdmit] = []
    blocks: list[np.ndarray] = []  # (group, row, index in the row's table, block) each
    next_block = 1
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        end = start + count
        known = end + (0 if draws[row] else 1)  # one more to go: the chunk does not end its prompt
        ids = np.zeros(known, dtype=np.int32)
        admits.append(
            RowAdmit(row=row, request_id=row, epoch=0, choice=0, token_ids=ids, num_prompt=known, sampling=sampling)
        )
        index = np.arange(ceil_div(end, layout.block_size), dtype=np.int32)
        for group in range(len(layout.groups)):
            own = 1 + (next_block - 1 + index) % layout.num_blocks
            blocks.append(np.stack([np.full_like(index, group), np.full_like(index, row), index, own]))
            next_block += len(index)
    columns = np.concatenate(blocks, axis=1).astype(np.int32)
    num_rows = len(starts)

    def column(values: Sequence[int]) -> np.ndarray:
        return np.asarray(values, dtype=np.int32)

    return StepPlan(
        step=step,
        releases=_NONE,
        admits=tuple(admits),
        new_block_group=columns[0],
        new_block_row=columns[1],
        new_block_index=columns[2],
        new_block_id=columns[3],
        copy_src=_NONE,
        copy_dst=_NONE,
        row=column(range(num_rows)),
        start=column(starts),
        count=column(counts),
        num_draft=column([0] * num_rows),
        want_drafts=column([0] * num_rows),
        logits=column([Logits.LAST if draw else Logits.NONE for draw in draws]),
        sample=column(draws),
        feed_step=column([NO_FEED] * num_rows),
        draft_ids=_NONE,
    )


def filling_plans(cells: Sequence[Cell], layout: KVLayout, limits: Limits) -> list[StepPlan]:
    """Plans that leave numbers a model has written in every block the cells read.

    Memory nobody has touched is one page of zeros to a machine, and reading it would time the caches. So one prompt is
    computed, and its blocks are copied over the others.
    """
    longest = max(max(cell.context, cell.cached + cell.chunk) for cell in cells)
    size = min(longest, limits.max_tokens, 256)
    plans = [cell_plan(Cell(chunk=size, cached=at, sampled=False), layout, 0) for at in range(0, longest - size, size)]
    plans.append(cell_plan(Cell(chunk=size, cached=longest - size, sampled=False), layout, 0))
    last = plans[-1]
    written = int(last.new_block_id[last.new_block_group == 0].max())  # other groups begin where this one ends
    used = max(int(cell_plan(cell, layout, 0).new_block_id.max()) for cell in cells)
    if used > written:
        targets = np.arange(written + 1, used + 1, dtype=np.int32)
        nothing = dict.fromkeys(("row", "start", "count", "num_draft", "want_drafts", "logits", "sample"), _NONE)
        nothing |= dict.fromkeys(("feed_step", "new_block_group", "new_block_row", "new_block_index"), _NONE)
        copies = {"copy_src": 1 + (targets - 1) % written, "copy_dst": targets, "new_block_id": _NONE, "admits": ()}
        plans.append(msgspec.structs.replace(last, **nothing, **copies))
    return plans
