"""Lays out blocks and builds attention metadata for tests of kernels and models: a model runner without an engine.

Blocks are placed at random, free ones hold NaN, a table keeps stale ids behind a window (as an executor's does, which
is never told what slid out), and whatever a step must not read is poison.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.contracts.kv import KVGroupSpec, KVLayout, kv_format, plan_kv_groups
from paceline.contracts.specs import ModelSpec
from paceline.runtime.forward_context import AttentionMetadata, ForwardContext, GroupMetadata, forward_context
from paceline.runtime.kv_cache import KVCache
from paceline.runtime.models import Model


@dataclass
class Row:
    """One sequence: computed ids and a block table per group."""

    ids: list[int] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)
    held: list[list[bool]] = field(default_factory=list)  # per group and logical block


class BlockPool:
    """Random placement with poison in everything free."""

    def __init__(self, layout: KVLayout, cache: KVCache, seed: int) -> None:
        self.layout, self.cache = layout, cache
        self.random = random.Random(seed)
        self.free = list(range(1, layout.num_blocks + 1))
        self.refs: dict[int, int] = {}
        cache.poison(self.free)

    def take(self) -> int:
        block = self.free.pop(self.random.randrange(len(self.free)))
        self.refs[block] = 1
        return block

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if not self.refs[block]:
            del self.refs[block]
            self.free.append(block)
            self.cache.poison([block])


def make_layout(
    spec: ModelSpec, *, block_size: int = 16, num_blocks: int = 256, dtype: torch.dtype = torch.float32
) -> KVLayout:
    name = str(dtype).removeprefix("torch.")
    held = kv_format(name, spec)
    groups = plan_kv_groups(spec, block_size, held.element_bytes, held.scale_bytes)
    return KVLayout(groups=groups, num_blocks=num_blocks, dtype=name)


class Harness:
    """Runs chunks of rows through a model."""

    def __init__(
        self,
        model: Model,
        *,
        block_size: int = 16,
        num_blocks: int = 256,
        seed: int = 0,
        kv_dtype: torch.dtype | None = None,  # None: the model's
    ) -> None:
        self.model = model
        kv_dtype = kv_dtype or model.context.dtype
        self.layout = make_layout(model.spec, block_size=block_size, num_blocks=num_blocks, dtype=kv_dtype)
        self.cache = KVCache(self.layout, model.spec, kv_dtype)
        self.pool = BlockPool(self.layout, self.cache, seed)
        model.bind_kv_cache(self.cache)

    def row(self, share: Row | None = None, num_tokens: int = 0) -> Row:
        """A new row, or one that starts with the full blocks of the first `num_tokens` of another (a cache hit)."""
        groups = len(self.layout.groups)
        row = Row(tables=[[] for _ in range(groups)], held=[[] for _ in range(groups)])
        if share is not None:
            size = self.layout.block_size
            assert num_tokens % size == 0
            row.ids = share.ids[:num_tokens]
            for g in range(groups):
                for index in range(num_tokens // size):
                    held = share.held[g][index]
                    row.tables[g].append(share.tables[g][index])
                    row.held[g].append(held)
                    if held:
                        self.pool.refs[share.tables[g][index]] += 1
        return row

    def release(self, row: Row) -> None:
        for g, table in enumerate(row.tables):
            for index, block in enumerate(table):
                if row.held[g][index]:
                    self.pool.drop(block)

    def step(self, work: Sequence[tuple[Row, Sequence[int]]], *, every: bool = True) -> list[torch.Tensor]:
        """Compute new ids of some rows in one forward pass. Logits per row: [its tokens, vocab], or the last only."""
        metadata = self.metadata([(row, len(ids)) for row, ids in work])
        input_ids = torch.tensor([i for _, ids in work for i in ids], dtype=torch.int64)
        positions = torch.cat([torch.arange(len(row.ids), len(row.ids) + len(ids)) for row, ids in work])
        with torch.inference_mode(), forward_context(ForwardContext(attention=metadata)):
            hidden = self.model(input_ids, positions)
        counts = [len(ids) for _, ids in work]
        for row, ids in work:
            row.ids.extend(ids)
            self._slide(row)
        with torch.inference_mode():
            if every:
                return list(self.model.logits(hidden).clone().split(counts))
            ends = torch.tensor(counts).cumsum(0) - 1
            return list(self.model.logits(hidden[ends]).clone().split(1))

    def metadata(self, work: Sequence[tuple[Row, int]]) -> AttentionMetadata:
        """Grow tables and describe the step."""
        size = self.layout.block_size
        counts = [count for _, count in work]
        groups = []
        for g in range(len(self.layout.groups)):
            slots = []
            for row, count in work:
                start, table = len(row.ids), row.tables[g]
                while len(table) * size < start + count:
                    table.append(self.pool.take())
                    row.held[g].append(True)
                slots.extend(table[p // size] * size + p % size for p in range(start, start + count))
            width = max(len(row.tables[g]) for row, _ in work)
            padded = [row.tables[g] + [0] * (width - len(row.tables[g])) for row, _ in work]
            groups.append(
                GroupMetadata(torch.tensor(slots, dtype=torch.int64), torch.tensor(padded, dtype=torch.int32))
            )
        contexts = [len(row.ids) for row, _ in work]
        return AttentionMetadata(
            query_start_loc=torch.tensor([0, *counts]).cumsum(0).int(),
            seq_lens=torch.tensor([a + b for a, b in zip(contexts, counts, strict=True)], dtype=torch.int32),
            query_lens=np.asarray(counts, np.int64),
            context_lens=np.asarray(contexts, np.int64),
            groups=tuple(groups),
        )

    def greedy(self, prompt: Sequence[int], count: int, *, chunk: int | None = None) -> list[int]:
        """The next `count` ids of one sequence alone."""
        row = self.row()
        step = chunk or len(prompt)
        for begin in range(0, len(prompt), step):
            logits = self.step([(row, prompt[begin : begin + step])], every=False)[0]
        made: list[int] = []
        for _ in range(count):
            made.append(int(logits[-1].argmax()))
            logits = self.step([(row, made[-1:])], every=False)[0]
        self.release(row)
        return made

    def _slide(self, row: Row) -> None:
        """Give back blocks that no later query sees; their ids stay in the table."""
        for g, group in enumerate(self.layout.groups):
            for index in range(min(first_visible(group, len(row.ids)), len(row.tables[g]))):
                if row.held[g][index]:
                    row.held[g][index] = False
                    self.pool.drop(row.tables[g][index])


def first_visible(group: KVGroupSpec, position: int) -> int:
    return group.first_visible_block(position)
