"""A model without weights whose logits are a function of every token id it can see in the paged cache.

It writes ids and positions where `slot_mapping` says and reads them back through block tables, so a wrong slot, table,
position or window gives another text, or an error where a position is not the one expected.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.contracts.kv import KVLayout
from paceline.runtime.forward_context import current

MODULUS = 1_000_003


class HistoryCache:
    """One id and one position per slot; -1 means never written."""

    def __init__(self, layout: KVLayout) -> None:
        self.block_size = layout.block_size
        shape = (layout.num_blocks + 1, layout.block_size)
        self.ids = torch.full(shape, -1, dtype=torch.int64)
        self.positions = torch.full(shape, -1, dtype=torch.int64)

    def copy_blocks(self, src: Sequence[int], dst: Sequence[int]) -> None:
        self.ids[dst] = self.ids[src]
        self.positions[dst] = self.positions[src]

    def poison(self, blocks: Sequence[int]) -> None:
        """Make any later read of these blocks show."""
        self.positions[blocks] = -2


class HistoryModel:
    """hidden [T, groups]: for each KV group, a rolling sum of the ids its window shows. `windows` has one per group."""

    def __init__(self, cache: HistoryCache, windows: Sequence[int | None], vocab_size: int) -> None:
        self.cache = cache
        self.windows = windows
        self.vocab_size = vocab_size
        self.broken: set[float] = set()  # values of hidden's first column whose logits shall not be numbers

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        meta = current().attention
        hidden = torch.zeros(len(input_ids), len(self.windows), dtype=torch.float64)
        for group, window in enumerate(self.windows):
            where = meta.groups[group]
            self.cache.ids.view(-1)[where.slot_mapping] = input_ids
            self.cache.positions.view(-1)[where.slot_mapping] = positions
            for row, (size, context) in enumerate(zip(meta.query_lens, meta.context_lens, strict=True)):
                begin = int(meta.query_start_loc[row])
                assert int(meta.seq_lens[row]) == context + size
                for offset in range(size):
                    position = context + offset
                    assert int(positions[begin + offset]) == position
                    seen = torch.arange(0 if window is None else max(0, position - window + 1), position + 1)
                    blocks = where.block_tables[row, seen // self.cache.block_size].long()
                    slots = blocks * self.cache.block_size + seen % self.cache.block_size
                    assert torch.equal(self.cache.positions.view(-1)[slots], seen), "slots of another position"
                    state = 7
                    for token in self.cache.ids.view(-1)[slots].tolist():
                        state = (state * 31 + token + 1) % MODULUS
                    hidden[begin + offset, group] = state
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(1, self.vocab_size + 1, dtype=torch.float64)
        found = (torch.sin(hidden.sum(1, keepdim=True) * ids * 0.7391) * 3).float()
        for row, value in enumerate(hidden[:, 0].tolist()):
            if value in self.broken:
                found[row, -1] = float("nan")
        return found
