"""What an admission would hit and need: made without side effects, and made again when blocks have changed hands since.

Not covered: taking what was quoted (`KVManager.reserve`), and what a sliding window's promise is (`kv_window`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from paceline.contracts.kv import KVLayout
from paceline.engine import kv_window
from paceline.engine.block_pool import BlockPool
from paceline.engine.prefix_cache import Entry, PrefixCache, SequenceKeys
from paceline.engine.sequence_kv import Quote, SequenceKV, View


class Quotes:
    """Looks at pool, cache and `live` reservations, all of which belong to the manager."""

    __slots__ = (
        "_block_size",
        "_cache",
        "_chunk",
        "_groups",
        "_live",
        "_nothing",
        "_pool",
        "_prefix_caching",
        "_slides",
    )

    def __init__(
        self,
        layout: KVLayout,
        pool: BlockPool[Entry],
        cache: PrefixCache,
        live: Mapping[int, SequenceKV],
        *,
        prefix_caching: bool,
        max_chunk_tokens: int,
    ) -> None:
        self._groups = layout.groups
        self._block_size = layout.block_size
        self._slides = any(group.window is not None for group in layout.groups)
        self._nothing: tuple[tuple[int, ...], ...] = ((),) * len(layout.groups)
        self._pool = pool
        self._cache = cache
        self._live = live
        self._prefix_caching = prefix_caching
        self._chunk = max_chunk_tokens

    def make(
        self,
        request_id: int,
        keys: SequenceKeys,
        num_known_tokens: int,
        max_hit_tokens: int,
        fork_tokens: int,
        use_cache: bool,
        fork_from: SequenceKV | None,
        readmission: bool,
    ) -> Quote:
        """See `KVManager.quote`."""
        assert 0 <= fork_tokens <= max_hit_tokens < num_known_tokens
        pending, num_hit, hits = None, 0, self._nothing
        tail: tuple[int, ...] = ()
        shared = self._fork(fork_from, fork_tokens) if fork_from is not None else None
        if shared is not None:
            hit_tokens, reason = fork_tokens, ""
            hits, tail = shared
        else:
            fork_from = None
            if not self._prefix_caching:
                reason = "disabled"
            elif not use_cache:
                reason = "prompt_logits"
            else:
                match = self._cache.match(keys, max_hit_tokens // self._block_size)
                num_hit, pending, reason = match.num_blocks, match.pending, match.miss_reason
                if num_hit:
                    hits = self._hits(keys, num_hit)
            hit_tokens = num_hit * self._block_size
        promises, num_taken = self._demand(num_known_tokens, hit_tokens, hits, tail)
        return Quote(
            request_id=request_id,
            num_known_tokens=num_known_tokens,
            hit_tokens=hit_tokens,
            hits=hits,
            tail_copy=tail,
            promises=promises,
            num_new_blocks=sum(promises),
            num_taken=num_taken,
            pending=pending,
            miss_reason=reason,
            keys=keys,
            sibling=fork_from,
            readmission=readmission,
            version=self._pool.version,
        )

    def renew(self, quote: Quote) -> Quote | None:
        """The same now, where blocks have changed hands since. None: a block it wanted to hit or copy is gone."""
        if quote.sibling is not None:
            if self._fork(quote.sibling, quote.hit_tokens) != (quote.hits, quote.tail_copy):
                return None
        elif quote.hit_tokens:
            num_hit = quote.hit_tokens // self._block_size
            for group, blocks in enumerate(quote.hits):
                if self._cache.blocks(quote.keys, group, num_hit - len(blocks), num_hit) != blocks:
                    return None
        promises, num_taken = self._demand(quote.num_known_tokens, quote.hit_tokens, quote.hits, quote.tail_copy)
        return msgspec.structs.replace(
            quote,
            promises=promises,
            num_new_blocks=sum(promises),
            num_taken=num_taken,
            version=self._pool.version,
        )

    def _hits(self, keys: SequenceKeys, num_hit: int) -> tuple[tuple[int, ...], ...]:
        tokens, blocks = num_hit * self._block_size, self._cache.blocks
        return tuple([blocks(keys, i, g.first_visible_block(tokens), num_hit) for i, g in enumerate(self._groups)])

    def _fork(self, sibling: SequenceKV, num_tokens: int) -> View | None:
        if not num_tokens or self._live.get(sibling.request_id) is not sibling:
            return None
        return sibling.view_before(self._groups, num_tokens)

    def _demand(
        self, num_known_tokens: int, hit_tokens: int, hits: Sequence[Sequence[int]], tail: Sequence[int]
    ) -> tuple[tuple[int, ...], int]:
        """Blocks to promise per group, and by how much promises and references lower the pool's `available`."""
        pool, groups = self._pool, self._groups
        rest = -(-num_known_tokens // self._block_size) - hit_tokens // self._block_size
        promises = (rest,) * len(groups)
        if self._slides:
            promises = tuple(
                [
                    rest
                    if spec.window is None
                    else kv_window.peak_promise(pool, spec, blocks, num_known_tokens, rest, self._chunk)
                    for spec, blocks in zip(groups, hits, strict=True)
                ]
            )
        taken = sum(promises)
        if hit_tokens:
            taken += sum([pool.cost_of_ref(block) for blocks in (*hits, tail) for block in blocks])
        return promises, taken
