"""What the fast attention derives from a step once, for all layers of a KV group.

Rows with one query (decode) are batched: those that share leading blocks form a family whose shared keys are read once,
and within a family rows of similar length go together, padded to the longest. Rows with more queries (prefill chunks)
are taken one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline.contracts.kv import NULL_BLOCK, ceil_div
from paceline.runtime.forward_context import AttentionMetadata
from paceline.runtime.kernels.params import AttentionParams
from paceline.runtime.kv_cache import LayerCache

GATHER_ELEMENTS = 1 << 20  # K and V elements gathered at once: they should still be in the cache when they are read
PADDING_BLOCKS = 16  # blocks of padding in a batch that cost about as much as a batch of its own
MIN_FAMILY = 4  # rows that make sharing worth its calls
MIN_SHARED_TOKENS = 64
MASKED_QUERIES = 256  # queries per masked piece of a prefill chunk


@dataclass(slots=True, eq=False)
class DecodeBatch:
    """Rows with one query each. B rows, L = columns * block size gathered slots each."""

    tokens: np.ndarray  # [B] their places along T
    num_rows: int
    num_slots: int  # L
    gather: torch.Tensor  # [2 * H * B * L / S] rows of LayerCache.runs
    length: int | None  # one row alone: its true length, and no mask is needed
    mask: torch.Tensor | None  # [H * B, 1, L] 0 or -inf
    dead: torch.Tensor | None  # slots (0 .. B * L) that belong to nobody and may hold poison


@dataclass(slots=True, eq=False)
class DecodeFamily:
    """Batches whose rows share their first blocks (none: num_shared is 0)."""

    num_shared: int  # slots
    gather: torch.Tensor | None  # [2 * H * num_shared / S] rows of LayerCache.runs
    batches: list[DecodeBatch]


@dataclass(slots=True, eq=False)
class PrefillPiece:
    """Queries [begin, end) of a chunk, with an explicit mask over slots [lo, hi) of what its row gathered."""

    begin: int
    end: int
    lo: int
    hi: int
    mask: torch.Tensor  # [end - begin, hi - lo] 0 or -inf


@dataclass(slots=True, eq=False)
class PrefillRow:
    """One row with several queries at tokens [start, stop) along T."""

    start: int
    stop: int
    num_cached: int  # slots gathered and before the chunk, counted from the first gathered one
    gather: torch.Tensor | None  # rows of LayerCache.runs; None when nothing precedes the chunk
    num_slots: int  # gathered, padding of the last block included
    pieces: list[PrefillPiece] | None  # None: causal, and everything cached is visible


@dataclass(slots=True, eq=False)
class StepPlan:
    decode: list[DecodeFamily]
    prefill: list[PrefillRow]
    # For each batch in turn, KV head by KV head, where its queries lie in q as [T * H, G, D]: one copy brings all of
    # them into the order of batched products. None: the step is one row with one query, in order as it is.
    order: torch.Tensor | None


def plan_step(metadata: AttentionMetadata, cache: LayerCache, params: AttentionParams, dtype: torch.dtype) -> StepPlan:
    """Sort the rows of a step into families, batches and chunks. `dtype` is that of masks: the one scores have."""
    counts, contexts = metadata.query_lens, metadata.context_lens
    starts = np.concatenate(([0], np.cumsum(counts)))
    tables = metadata.groups[cache.group].block_tables.numpy()
    builder = _Builder(tables, counts, contexts, starts, cache, params, dtype)
    single = np.flatnonzero(counts == 1)
    decode = builder.families(single) if len(single) else []
    return StepPlan(
        decode=decode,
        prefill=[builder.prefill(int(row)) for row in np.flatnonzero(counts > 1)],
        order=builder.order(decode) if starts[-1] > 1 else None,
    )


@dataclass(slots=True, eq=False)
class _Rows:
    """Decode rows as columns; slots are counted from the first gathered one."""

    tokens: np.ndarray  # place along T
    ids: np.ndarray  # [rows, widest] blocks to gather, null where the row has none
    begin: np.ndarray  # first visible slot
    end: np.ndarray  # one past the last
    needs: np.ndarray  # blocks

    def take(self, which: np.ndarray) -> _Rows:
        return _Rows(self.tokens[which], self.ids[which], self.begin[which], self.end[which], self.needs[which])


class _Builder:
    def __init__(
        self,
        tables: np.ndarray,
        counts: np.ndarray,
        contexts: np.ndarray,
        starts: np.ndarray,
        cache: LayerCache,
        params: AttentionParams,
        dtype: torch.dtype,
    ) -> None:
        self.tables, self.counts, self.contexts, self.starts = tables, counts, contexts, starts
        self.size, self.params, self.dtype = cache.block_size, params, dtype
        self.per_block = 2 * params.num_kv_heads * cache.block_size * params.head_dim  # elements, K and V
        self.heads = np.arange(2 * params.num_kv_heads, dtype=np.int64)[:, None]
        self.run_of = cache.run_of
        self.lengths = contexts + counts
        window = params.window
        lowest = np.zeros_like(contexts) if window is None else np.maximum(contexts - window + 1, 0)
        self.lowest = lowest  # first slot that a query of this step sees
        self.first = lowest // self.size  # its block
        self.last = (self.lengths + self.size - 1) // self.size  # one past the last block

    def rows_of(self, block_ids: np.ndarray) -> torch.Tensor:
        """Indices into LayerCache.runs, heads outermost, of flat block ids."""
        return torch.from_numpy(self.run_of(self.heads, block_ids[None, :]).reshape(-1))

    # decode

    def order(self, decode: list[DecodeFamily]) -> torch.Tensor:
        """StepPlan.order of these families."""
        heads = np.arange(self.params.num_kv_heads)[:, None]
        places = [(batch.tokens * len(heads) + heads).reshape(-1) for family in decode for batch in family.batches]
        return torch.from_numpy(np.concatenate(places) if places else np.empty(0, np.int64))

    def families(self, rows: np.ndarray) -> list[DecodeFamily]:
        """Rows that start with the same block, then everything else."""
        if len(rows) < MIN_FAMILY or self.params.window is not None or self.params.softcap is not None:
            return [DecodeFamily(0, None, self.batches(rows, 0))]
        firsts = self.tables[rows, 0]
        order = np.argsort(firsts, kind="stable")
        cuts = np.flatnonzero(np.diff(firsts[order])) + 1
        if len(cuts) == len(rows) - 1:
            return [DecodeFamily(0, None, self.batches(rows, 0))]
        found, alone = [], []
        for members in np.split(rows[order], cuts):
            shared = self.num_shared_blocks(members) if len(members) >= MIN_FAMILY else 0
            if shared * self.size < MIN_SHARED_TOKENS:
                alone.append(members)
                continue
            gather = self.rows_of(self.tables[members[0], :shared].astype(np.int64))
            found.append(DecodeFamily(shared * self.size, gather, self.batches(members, shared)))
        if alone:
            found.append(DecodeFamily(0, None, self.batches(np.sort(np.concatenate(alone)), 0)))
        return found

    def num_shared_blocks(self, members: np.ndarray) -> int:
        """Leading blocks that all members have in common and have filled; one slot at least stays outside."""
        most = int(((self.lengths[members] - 1) // self.size).min())
        same = (self.tables[members, :most] == self.tables[members[0], :most]).all(0)
        return most if same.all() else int(np.argmin(same))

    def batches(self, rows: np.ndarray, skip: int) -> list[DecodeBatch]:
        """Rows sorted by length and cut where padding, or memory, would cost more than another batch.

        What every batch needs is computed for all rows at once; a batch only takes its part.
        """
        base = np.maximum(self.first[rows], skip)
        needs = self.last[rows] - base  # blocks to gather
        logical = base[:, None] + np.arange(int(needs.max()))
        ids = self.tables[rows[:, None], np.minimum(logical, self.tables.shape[1] - 1)].astype(np.int64)
        ids[logical >= self.last[rows, None]] = NULL_BLOCK
        columns = _Rows(
            tokens=self.starts[rows],
            ids=ids,
            begin=np.maximum(self.lowest[rows] - base * self.size, 0),
            end=self.lengths[rows] - base * self.size,
            needs=needs,
        )
        order = np.argsort(-needs, kind="stable")
        tall = needs[order].tolist()
        most = max(1, GATHER_ELEMENTS // self.per_block)  # blocks at once
        made, begin, padding = [], 0, 0
        for i in range(1, len(rows) + 1):
            if i < len(rows):
                padding += tall[begin] - tall[i]
                if padding <= PADDING_BLOCKS and (i - begin + 1) * tall[begin] <= most:
                    continue
            made.append(self.batch(columns.take(np.sort(order[begin:i])), tall[begin]))
            begin, padding = i, 0
        return made

    def batch(self, rows: _Rows, width: int) -> DecodeBatch:
        """One batch of rows that need at most `width` blocks."""
        num_rows, num_slots = len(rows.tokens), width * self.size
        batch = DecodeBatch(
            tokens=rows.tokens,
            num_rows=num_rows,
            num_slots=num_slots,
            gather=self.rows_of(rows.ids[:, :width].reshape(-1)),
            length=None,
            mask=None,
            dead=None,
        )
        if num_rows == 1 and rows.begin[0] == 0:
            batch.length = int(rows.end[0])
            return batch
        # Slots past the end, in the last block that the row holds but has not filled. Null blocks are zero already.
        tail = rows.end[:, None] + np.arange(self.size)
        dead = (tail + np.arange(num_rows)[:, None] * num_slots)[tail < rows.needs[:, None] * self.size]
        batch.dead = torch.from_numpy(dead) if len(dead) else None
        if rows.begin.any() or int(rows.end.min()) < num_slots:
            slots = np.arange(num_slots)
            seen = slots < rows.end[:, None]
            if rows.begin.any():
                seen &= slots >= rows.begin[:, None]
            mask = np.where(seen, np.float32(0), np.float32("-inf"))[:, None]
            batch.mask = torch.from_numpy(np.concatenate([mask] * self.params.num_kv_heads)).to(self.dtype)
        return batch

    # prefill

    def prefill(self, row: int) -> PrefillRow:
        start, count, context = int(self.starts[row]), int(self.counts[row]), int(self.contexts[row])
        window, first = self.params.window, int(self.first[row])
        base = first * self.size
        masked = window is not None and context + count > window
        if masked or self.params.softcap is not None:
            last = int(self.last[row])  # the chunk's own blocks too
            pieces = [
                self.piece(begin, min(begin + MASKED_QUERIES, count), context, base)
                for begin in range(0, count, MASKED_QUERIES)
            ]
        else:
            last, pieces = ceil_div(context, self.size), None
        ids = self.tables[row, first:last].astype(np.int64)
        return PrefillRow(
            start=start,
            stop=start + count,
            num_cached=context - base,
            gather=self.rows_of(ids) if len(ids) else None,
            num_slots=len(ids) * self.size,
            pieces=pieces,
        )

    def piece(self, begin: int, end: int, context: int, base: int) -> PrefillPiece:
        window = self.params.window
        lo = base if window is None else max(base, context + begin - window + 1)
        hi = context + end
        queries, slots = np.arange(context + begin, hi)[:, None], np.arange(lo, hi)
        seen = slots <= queries
        if window is not None:
            seen &= slots > queries - window
        mask = torch.from_numpy(np.where(seen, np.float32(0), np.float32("-inf"))).to(self.dtype)
        return PrefillPiece(begin, end, lo - base, hi - base, mask)
