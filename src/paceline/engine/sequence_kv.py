"""The values of a KV transaction: what a quote says and what a reservation holds. Changed by `KVManager` alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from paceline.contracts.kv import NULL_BLOCK, BlockKey, KVGroupSpec
from paceline.engine.prefix_cache import Pending, SequenceKeys

NewBlocks: TypeAlias = Sequence[tuple[int, int, int]]
"""(group, logical index, block id), one for each block a row's tables must learn of."""

View: TypeAlias = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
"""Per group the full blocks, ending at one logical index; and per group a partial block, or nothing."""


class SequenceKV:
    """The KV half of a residency: made by `reserve`, ended by `release`."""

    __slots__ = (
        "capacity_tokens",
        "committed",
        "copies",
        "first",
        "generation",
        "next_commit",
        "num_blocks",
        "num_cached_tokens",
        "num_computed",
        "num_known_blocks",
        "pending",
        "promised",
        "request_id",
        "sources",
        "tables",
    )

    def __init__(
        self,
        request_id: int,
        num_cached_tokens: int,
        num_known_blocks: int,
        generation: int,
        tables: list[list[int]],
        first: list[int],
        promised: list[int],
    ) -> None:
        self.request_id = request_id
        self.num_cached_tokens = num_cached_tokens  # hit (or forked) at reservation
        self.tables = tables  # per group: logical index -> block id, NULL_BLOCK once slid out
        self.copies: Sequence[tuple[int, int]] = ()  # (src, dst) the first plan must carry, before any write
        self.num_blocks = 0  # references held, all groups; for metering
        # private to the manager
        self.num_computed = num_cached_tokens
        self.num_known_blocks = num_known_blocks  # logical blocks to the end of the known tokens at reservation
        self.generation = generation  # of the index; its blocks are not findable after a reset
        self.capacity_tokens = 0  # positions that have blocks
        self.committed = 0  # leading blocks that were offered to the index
        self.first = first  # per group: index of the first block still held
        self.promised = promised  # per group
        self.pending: list[BlockKey] | tuple[()] = ()  # keys it owes the index, next one last
        self.sources: Sequence[int] = ()  # blocks its copies read, referenced until the first commit
        self.next_commit = 0  # least num_computed at which commit has something to do

    def count_to(self, num_blocks: int, num_tokens: int) -> None:
        """It has so many blocks without names, for so many positions."""
        self.num_blocks = num_blocks
        self.capacity_tokens = num_tokens

    def columns(self) -> NewBlocks:
        """All blocks it has now, as a plan's new-block columns: hits, forked blocks and targets of copies."""
        if len(self.tables) == 1 and not self.first[0]:
            return [(0, index, block) for index, block in enumerate(self.tables[0])]
        return [
            (group, index, block)
            for group, table in enumerate(self.tables)
            for index, block in enumerate(table)
            if block != NULL_BLOCK
        ]

    def view_before(self, groups: Sequence[KVGroupSpec], num_tokens: int) -> View | None:
        """What a fork at position `num_tokens` may share: per group the visible full blocks, and the partial block
        (none at a block boundary). None when not all of it is computed yet, or some has slid out of a window."""
        if self.num_computed < num_tokens or self.sources:  # its own copy may not have run yet
            return None
        block_size = groups[0].block_size
        whole, rest = divmod(num_tokens, block_size)
        hits, tail = [], []
        for group, first, table in zip(groups, self.first, self.tables, strict=True):
            visible = group.first_visible_block(num_tokens)
            if first > visible:
                return None
            hits.append(tuple(table[visible:whole]))
            if rest:
                tail.append(table[whole])
        return tuple(hits), tuple(tail)

    def check(self, groups: Sequence[KVGroupSpec], max_chunk_tokens: int) -> None:
        """Assert what must hold between any two calls."""
        assert self.num_blocks == sum(block != NULL_BLOCK for table in self.tables for block in table)
        for group, table, first, promised in zip(groups, self.tables, self.first, self.promised, strict=True):
            assert len(table) * group.block_size == self.capacity_tokens >= self.num_computed
            assert all(block == NULL_BLOCK for block in table[:first]), "not given back"
            assert NULL_BLOCK not in table[first:], "a hole behind the window"
            assert first == group.first_visible_block(self.num_computed), "dropped too early or too late"
            assert len(table) - first <= group.max_blocks(self.capacity_tokens, max_chunk_tokens)
            assert promised <= max(0, self.num_known_blocks - len(table)), "promised more than is missing"


class Quote(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What admission would bring and cost now. Made without side effects; `reserve` checks it again."""

    request_id: int
    num_known_tokens: int
    hit_tokens: int  # or forked tokens
    hits: tuple[tuple[int, ...], ...]  # per group: the visible blocks, ending at hit_tokens' last full block
    tail_copy: tuple[int, ...]  # per group: a live sibling's partial block to copy; empty without one
    promises: tuple[int, ...]  # blocks per group, at the worst moment up to the end of the known tokens
    num_new_blocks: int  # the same, all groups
    num_taken: int  # by how much `reserve` lowers what others may take: the above, and hits now unreferenced
    pending: Pending | None
    miss_reason: str  # "" when all that could be hit is
    keys: SequenceKeys
    sibling: SequenceKV | None
    readmission: bool
    version: int
