"""Transactions over KV memory: quote, reserve, grow, commit, release. The one owner of a block's lifetime.

    keys  = kv.keys_for(request)                    # keep it with the request, across preemptions too
    quote = kv.quote(request_id, keys, num_known, max_hit_tokens=num_known - 1)
    state = kv.reserve(quote)                       # or None: space, or a block it wanted to hit, is gone
    state.columns(), state.copies                   # what the plan of its first step must carry
    new   = kv.grow(state, planned_end)             # () = nothing needed, None = shortage
    keys.extend(token_ids)                          # tokens known since; before the commit that covers them
    kv.commit(state, keys, num_computed)            # results are in: blocks become findable, windows slide
    kv.release(state, in_flight_step=step or None)
    kv.step_done(step)                              # at every applied step: what it pinned may be reused

Admission promises a request all the blocks it needs to the end of its known tokens, so a prefill that has started never
runs out. The promise is a number; blocks are taken from it chunk by chunk, and what a sliding window drops on the way
goes back to it. Growth beyond (generated tokens) takes what is neither held nor promised, and may fail.

Deterministic: no clock, no randomness, no order taken from sets. Not covered: lower tiers, what the blocks contain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat

from paceline.contracts.kv import NULL_BLOCK, BlockKey, CacheDomain, KVEvents, KVLayout, KVStats
from paceline.contracts.request import Request
from paceline.engine import kv_window
from paceline.engine.block_count import CountedPool
from paceline.engine.block_pool import BlockPool
from paceline.engine.kv_arrivals import take_in
from paceline.engine.kv_audit import audit, audit_counts
from paceline.engine.kv_meter import HitMeter
from paceline.engine.kv_quotes import Quotes
from paceline.engine.prefix_cache import Entry, Pending, PrefixCache, SequenceKeys
from paceline.engine.sequence_kv import NewBlocks, Quote, SequenceKV

__all__ = ["KVManager", "NewBlocks", "Pending", "Quote", "SequenceKV", "SequenceKeys"]

NOTHING_NEW: NewBlocks = ()
NEVER = sys.maxsize
NO_DOMAIN = CacheDomain(model_revision="", kv_dtype="")  # of keys that are never made


class KVManager:
    """`max_chunk_tokens`: the most positions of one request that may be planned and not yet computed, which is the
    largest chunk of a step times the plans in flight. The blocks a sliding window needs depend on it.

    `share_tenants`: requests of different tenants with equal salts may hit each other's blocks. Off by default, since
    a hit is faster than a miss and so tells one tenant what another one asked.

    `names_blocks` False: blocks are counted and have no ids; where no plan is written and nothing cached.

    `explains_misses` False: `KVStats.miss_reasons` has none of those that the cache would have to remember for.
    """

    def __init__(
        self,
        layout: KVLayout,
        *,
        prefix_caching: bool = True,
        max_chunk_tokens: int,
        model_revision: str = "",
        event_capacity: int = 4096,
        share_tenants: bool = False,
        explains_misses: bool = True,
        names_blocks: bool = True,
    ) -> None:
        assert max_chunk_tokens >= 1
        assert len({(g.block_size, g.bytes_per_block) for g in layout.groups}) == 1, "groups differ in block shape"
        self.layout = layout
        self.prefix_caching = prefix_caching
        self.max_chunk_tokens = max_chunk_tokens
        self.model_revision = model_revision
        self.share_tenants = share_tenants
        self.names_blocks = names_blocks
        self._block_size = layout.block_size
        self._num_groups = len(layout.groups)
        self._sliding = tuple(index for index, group in enumerate(layout.groups) if group.window is not None)
        self._window_blocks = [group.max_blocks(NEVER, max_chunk_tokens) for group in layout.groups]
        self._cache = PrefixCache(layout.groups, event_capacity=event_capacity, explains=explains_misses)
        self._counted: CountedPool[Entry] | None = None
        if not names_blocks:
            assert (prefix_caching, self._sliding) == (False, ()), "these blocks are told apart"
            self._counted = CountedPool(layout.num_blocks)
        self._pool: BlockPool[Entry] = self._counted or BlockPool(layout.num_blocks, self._cache.evict)
        self._live: dict[int, SequenceKV] = {}
        self._quotes = Quotes(
            layout,
            self._pool,
            self._cache,
            self._live,
            prefix_caching=prefix_caching,
            max_chunk_tokens=max_chunk_tokens,
        )
        self._last_step_done = -1
        self._generation = 0
        self._no_keys: SequenceKeys | None = None  # without a cache: the same for all
        self._meter = HitMeter()

    # admission

    def keys_for(self, request: Request) -> SequenceKeys:
        """Chained keys of the full blocks of its known tokens (prompt and prior output). Once per request."""
        if not self.prefix_caching:
            if self._no_keys is None:
                self._no_keys = SequenceKeys(request, NO_DOMAIN, self._block_size, enabled=False)
            return self._no_keys
        domain = CacheDomain(
            model_revision=self.model_revision,
            kv_dtype=self.layout.dtype,
            adapter_digest=request.adapter_digest,
            salt=request.cache_salt,
            tenant="" if self.share_tenants else request.tenant,
        )
        return SequenceKeys(request, domain, self._block_size)

    def quote(
        self,
        request_id: int,
        keys: SequenceKeys,
        num_known_tokens: int,
        max_hit_tokens: int,
        use_cache: bool = True,
        fork_from: SequenceKV | None = None,
        fork_tokens: int = 0,
        readmission: bool = False,
    ) -> Quote:
        """What it would hit and need now.

        `max_hit_tokens` is usually `num_known_tokens - 1`: the last known token is always recomputed, for its logits.
        `use_cache=False`: it needs logits of prompt positions. `fork_from`: a live sibling that has computed at least
        `fork_tokens` of the same tokens; when it has not, or is gone, the quote is an ordinary one. `readmission`: a
        preempted request comes back, so hit rate and miss reasons do not count it again.
        """
        return self._quotes.make(
            request_id,
            keys,
            num_known_tokens,
            max_hit_tokens,
            fork_tokens,
            use_cache,
            fork_from,
            readmission,
        )

    def fits(self, quote: Quote, *, headroom_blocks: int = 0) -> bool:
        """Whether it could be reserved as quoted and leave `headroom_blocks` for the growth of others."""
        return quote.num_taken + headroom_blocks <= self._pool.available

    def never_fits(self, num_tokens: int) -> bool:
        """A sequence of so many tokens does not fit even alone."""
        return self.layout.max_blocks(num_tokens, self.max_chunk_tokens) > self._pool.num_blocks

    def reserve(self, quote: Quote) -> SequenceKV | None:
        """Take what was quoted, all or nothing. None when there is no space or a block to hit or copy is gone.

        References the hits, promises the rest, allocates the targets of copies, and marks the full blocks it is going
        to compute as pending.
        """
        pool, size = self._pool, self._block_size
        assert quote.request_id not in self._live
        if quote.version != pool.version:
            renewed = self._quotes.renew(quote)
            if renewed is None:
                return None
            quote = renewed
        if quote.num_taken > pool.available:
            return None
        generation = quote.sibling.generation if quote.sibling is not None else self._generation
        num_hit, num_known = quote.hit_tokens // size, -(-quote.num_known_tokens // size)
        tables: list[list[int]] = []
        first: list[int] = []
        kv = SequenceKV(quote.request_id, quote.hit_tokens, num_known, generation, tables, first, list(quote.promises))
        for index, blocks in enumerate(quote.hits):
            for block in blocks:
                own = pool.is_cached(block)
                pool.ref(block)
                if own and index in self._sliding and num_hit < num_known:
                    pool.back(block, kv.request_id)
            begin = num_hit - len(blocks)
            first.append(begin)
            tables.append([NULL_BLOCK] * begin + list(blocks))
            kv.num_blocks += len(blocks)
        pool.promise(quote.num_new_blocks)
        kv.capacity_tokens = num_hit * size
        kv.committed = num_hit
        self._live[kv.request_id] = kv
        if quote.tail_copy:
            kv.sources = quote.tail_copy
            for source in quote.tail_copy:
                pool.ref(source)
            targets = self.grow(kv, kv.capacity_tokens + 1)
            assert targets is not None
            kv.copies = [(source, target) for source, (_g, _i, target) in zip(quote.tail_copy, targets, strict=True)]
        if generation == self._generation and quote.keys.keys:
            known = min(len(quote.keys.keys), quote.num_known_tokens // size)
            if known > num_hit:
                kv.pending = self._cache.claim(quote.keys, num_hit, known, kv.request_id)[::-1]
        self._meter.note(quote)
        return kv

    # life

    def grow(self, kv: SequenceKV, num_tokens: int) -> NewBlocks | None:
        """Make blocks exist for positions [0, num_tokens), all groups or none. None = too few. Up to tokens known at
        the reservation this cannot fail; nor does it when nothing new is needed."""
        if num_tokens <= kv.capacity_tokens:
            return NOTHING_NEW
        pool, size = self._pool, self._block_size
        begin, end = kv.capacity_tokens // size, -(-num_tokens // size)
        if self._num_groups == 1 and not self._sliding:  # as most models are
            needed, left = end - begin, kv.promised[0]
            promised = needed if needed < left else left
            if needed - promised > pool.available:
                return None
            taken = pool.allocate(needed, promised)
            kv.promised[0] = left - promised
            kv.capacity_tokens = end * size
            kv.num_blocks += needed
            if self._counted is not None:
                return NOTHING_NEW
            kv.tables[0] += taken
            return list(zip(repeat(0), range(begin, end), taken))
        from_promise = [min(end - begin, left) for left in kv.promised]
        total, promised = (end - begin) * self._num_groups, sum(from_promise)
        if total - promised > pool.available:
            return None
        blocks = iter(pool.allocate(total, promised))
        new = [(group, index, next(blocks)) for group in range(self._num_groups) for index in range(begin, end)]
        for group, _index, block in new:
            kv.tables[group].append(block)
        kv.capacity_tokens = end * size
        kv.num_blocks += total
        kv.promised = [left - used for left, used in zip(kv.promised, from_promise, strict=True)]
        for group in self._sliding:
            assert end - kv.first[group] <= self._window_blocks[group], (
                f"request {kv.request_id} has {kv.num_computed} tokens computed and {num_tokens} planned: more than "
                f"{self.max_chunk_tokens} apart"
            )
            if begin < kv.num_known_blocks:
                kv_window.grew(pool, kv, group, begin)
        return new

    def grow_rows(self, rows: Sequence[SequenceKV | None], published: Sequence[BlockKey]) -> bool:
        """`grow` by one block for each entry, in this order, of rows whose promises are used up. False: do it one by
        one, since in between `published` would change what is evicted or found, or windows move."""
        pool, size = self._pool, self._block_size
        if self._sliding or self._num_groups > 1 or len(rows) > pool.available:
            return False
        if published and not self._cache.are_new(published):
            return False
        for kv, block in zip(rows, pool.allocate(len(rows)), strict=True):
            assert kv is not None
            kv.tables[0].append(block)
            kv.capacity_tokens += size
            kv.num_blocks += 1
        return True

    def grow_by_count(self, num_blocks: int) -> None:
        """So many blocks without names are taken by rows whose promises are used up, and there are enough. The caller
        notes them in each row (`SequenceKV.count_to`)."""
        self._pool.allocate(num_blocks)

    def commit(self, kv: SequenceKV, keys: SequenceKeys, num_computed: int) -> None:
        """Positions [0, num_computed) are computed and final: full blocks become findable, windows drop blocks."""
        assert kv.num_computed <= num_computed <= kv.capacity_tokens
        kv.num_computed = num_computed
        if num_computed < kv.next_commit:
            return
        pool, size = self._pool, self._block_size
        if kv.sources:  # the copies were part of a step that is done
            for source in kv.sources:
                pool.deref(source)
            kv.sources = kv.copies = ()
        kv.next_commit = NEVER
        if kv.generation == self._generation:
            if keys.keys:
                self._publish(kv, keys, num_computed // size)
            if not keys.closed or len(keys.keys) > kv.committed:
                kv.next_commit = (kv.committed + 1) * size
        for group in self._sliding:
            next_slide = kv_window.slide(pool, self.layout.groups[group], kv, group)
            kv.next_commit = min(kv.next_commit, next_slide)

    def _publish(self, kv: SequenceKV, keys: SequenceKeys, num_full: int) -> None:
        begin, end, pending = kv.committed, min(num_full, len(keys.keys)), kv.pending
        if begin >= end:
            return
        step = end - begin if self._num_groups == 1 else 1  # groups take turns, block by block
        for first in range(begin, end, step):
            for group, table in enumerate(kv.tables):
                self._pool.set_labels(self._cache.add_all(keys, group, first, table[first : first + step]))
        kv.committed = end
        if pending:
            self._cache.settle([pending.pop() for key in keys.keys[begin:end] if pending and pending[-1] == key])

    def release(self, kv: SequenceKV, in_flight_step: int | None = None) -> None:
        """End it. `in_flight_step`: the last submitted step that may still touch its blocks; they wait for it. The tail
        is dropped first, so that of what stays cached the ends of sequences are evicted before their starts."""
        pool = self._pool
        assert self._live.pop(kv.request_id, None) is kv, "released twice"
        assert in_flight_step is None or in_flight_step > self._last_step_done, "its blocks would wait for ever"
        if promised := sum(kv.promised):
            pool.unpromise(promised)
        if self._num_groups == 1 and not self._sliding:
            blocks = kv.tables[0]
        else:
            rows = zip(*kv.tables, strict=True)
            blocks = [block for row in rows for block in row if block != NULL_BLOCK]
        for group in self._sliding:
            kv_window.end_promise(pool, kv, group)
        if self._counted is not None:
            self._counted.give_back(kv.num_blocks, in_flight_step)
        else:
            pool.deref_all([*blocks, *kv.sources][::-1], pin=in_flight_step)
        if kv.pending:
            self._cache.settle(kv.pending[::-1])
            kv.pending = ()
        kv.tables, kv.promised, kv.sources, kv.copies = [], [], (), ()
        kv.num_blocks = kv.capacity_tokens = 0

    def take_in(self, keys: SequenceKeys, num_tokens: int, came: Sequence[int] | None = None) -> int:
        """KV of the first `num_tokens` came from elsewhere, or the blocks `came` of it. Returns findable tokens."""
        assert self.prefix_caching, "nothing could be found"
        assert self._num_groups == 1
        return self._block_size * take_in(self._pool, self._cache, keys, num_tokens // self._block_size, came)

    def step_done(self, step: int) -> None:
        """The step's result was applied (in order of submission); blocks dropped while it ran may be reused."""
        self._last_step_done = step
        if self._pool.pins:
            self._pool.unpin(step)

    # looking in

    def settled(self) -> Sequence[BlockKey]:
        """Keys that stopped being pending since the last call, ready or given up: wake who waits for them. Drain it."""
        return self._cache.take_settled()

    def take_events(self) -> KVEvents:
        """What others may follow the cache by, oldest first, since the last call. The oldest are lost when full."""
        return self._cache.take_events()

    def has(self, num_blocks: int) -> bool:
        """So many are available."""
        return num_blocks <= self._pool.available

    @property
    def num_available(self) -> int:
        """Blocks that growth or a new request may take now: free or cached, and not promised."""
        return self._pool.available

    @property
    def num_limbo(self) -> int:  # they come back when steps in flight are done
        return self._pool.num_limbo

    def stats(self) -> KVStats:
        pool, meter = self._pool, self._meter
        return KVStats(
            total=pool.num_blocks,
            free=pool.num_free,
            cached=pool.num_cached,
            held=pool.num_held,
            limbo=pool.num_limbo,
            reserved=pool.reserved,
            hit_tokens=meter.hit_tokens,
            query_tokens=meter.query_tokens,
            evictions=pool.num_evictions,
            miss_reasons=dict(sorted(meter.miss_reasons.items())),
            saved_tokens=meter.saved_tokens,
            dropped_events=self._cache.dropped_events,
        )

    def reset(self) -> bool:
        """Make everything cached so far unfindable (weights changed, or a test wants a cold start). Running requests
        keep their blocks; what they still compute is not indexed. True when none ran: no old KV is left at all."""
        for entry in self._cache.entries():
            self._pool.drop_label(entry.block)
        self._cache.clear()
        self._generation += 1
        for kv in self._live.values():
            kv.pending = ()
        return self._pool.num_held == 0 and self._pool.num_limbo == 0

    def check(self) -> None:
        """Assert the ledger's laws. Walks everything; for tests and audits."""
        if self._counted is not None:
            return audit_counts(self._block_size, self._counted, self._live)
        return audit(self.layout.groups, self.max_chunk_tokens, self._pool, self._cache, self._live)
