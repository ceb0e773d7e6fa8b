"""Which blocks can be found by content: an index from (group, chained key) to block, and how long a prefix it holds.

An entry is *pending* (an admitted request is going to compute it: those who need it may wait instead of computing it
too) and then *ready*. Pending is a fact about a key, ready one about a key in a group: a request computes a block for
all groups at once, but a sliding window gives up its old blocks sooner.

A hit is the longest prefix that is valid in *every* group. A full group needs all of its blocks; a sliding group only
those that a query right after the hit still sees.

A key is a 128-bit digest; still, the tokens themselves are kept with each entry and compared on every hit. A block with
an equal key and other tokens is a miss.

Not covered: who holds a block and when it is evicted (`block_pool`, `kv_manager`), other tiers.
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec
import numpy as np

from paceline.contracts.kv import (
    BlockKey,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    CacheDomain,
    KVEvent,
    KVEvents,
    KVGroupSpec,
    chain_key,
    chain_keys,
    root_key,
)
from paceline.contracts.request import Request, TokenPrompt

Value = TypeVar("Value")
NEVER = sys.maxsize  # tokens
GHOST_CAPACITY = 16_384  # evicted keys remembered, to tell "evicted" from "cold"
DOMAIN_CAPACITY = 4_096  # first blocks remembered with their domain, to tell "other salt or adapter" from "cold"


class SequenceKeys:
    """Keys of the full blocks of one request's known tokens, extended as tokens come. Belongs to the request, not to
    its residency: it stays valid across preemptions. Opaque to the scheduler except for `extend`.
    """

    __slots__ = (
        "_block_size",
        "_has_extras",
        "_request",
        "_tail",
        "closed",
        "first_digest",
        "keys",
        "next_known",
        "root",
        "tokens",
    )

    def __init__(self, request: Request, domain: CacheDomain, block_size: int, *, enabled: bool = True) -> None:
        self._request = request
        self._block_size = block_size
        self.root = root_key(domain) if enabled else b""
        self.keys: list[BlockKey] = []
        self.tokens: list[bytes] = []  # little-endian int32 of each keyed block
        self.first_digest = b""  # of the first block, without the domain
        self._tail: list[int] = []  # known tokens behind the last keyed block
        self.closed = not enabled  # no further key will ever come
        self.next_known = NEVER  # known tokens at which the next key comes
        if not enabled:
            return
        prompt = request.prompt
        self._has_extras = bool(prompt.spans) or not isinstance(prompt, TokenPrompt)
        known = prompt.num_keyed_tokens
        if known == prompt.num_tokens:
            ids = request.initial_ids()
        else:
            ids, self.closed = prompt.ids[:known], True
        data = np.ascontiguousarray(ids, dtype="<i4").tobytes()
        whole = len(ids) // block_size * block_size
        self._take(data[: 4 * whole])
        if not self.closed:
            self._tail.extend(ids[whole:].tolist())
            self.next_known = whole + block_size

    def __len__(self) -> int:
        return len(self.keys)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Known tokens that follow. May lag behind the sequence; blocks become findable only once they have a key."""
        if self.closed:
            return
        tail, size = self._tail, self._block_size
        tail.extend(token_ids)
        if whole := len(tail) // size * size:
            self._take(struct.pack(f"<{whole}i", *tail[:whole]))
            del tail[:whole]
            self.next_known += whole

    def _take(self, data: bytes) -> None:
        """Tokens of whole blocks."""
        keys, size = self.keys, self._block_size
        parent, num_bytes = keys[-1] if keys else self.root, 4 * size
        blocks = [data[at : at + num_bytes] for at in range(0, len(data), num_bytes)]
        self.tokens += blocks
        if not self._has_extras:
            if not keys and blocks:
                self.first_digest = chain_key(b"", blocks[0])
            keys += chain_keys(parent, blocks)
            return
        extras = self._request.prompt.key_extras
        for block in blocks:
            begin = len(keys) * size
            more = extras(begin, begin + size)
            if not keys:
                self.first_digest = chain_key(b"", block, more)
            parent = chain_key(parent, block, more)
            keys.append(parent)

    def parent(self, index: int) -> BlockKey:
        return self.keys[index - 1] if index else self.root

    def clip(self, num_blocks: int) -> int:
        """Most blocks, at most `num_blocks`, whose end does not cut a media span."""
        for span in sorted(self._request.prompt.spans, key=lambda span: -span.start):
            if span.start < num_blocks * self._block_size < span.start + span.length:
                num_blocks = span.start // self._block_size
        return num_blocks


class Entry(msgspec.Struct, frozen=True, gc=False):  # gc=False: there may be a million, and they refer to no container
    """A ready block."""

    block: int
    group: int
    key: BlockKey
    parent: BlockKey
    tokens: bytes


class Pending(msgspec.Struct, frozen=True):
    """Blocks another request is computing."""

    owner: int  # its request_id
    key: BlockKey  # the last of them: wait until `settled` names it, then quote again
    num_tokens: int  # hit tokens gained by waiting


class Match(msgspec.Struct, frozen=True):
    num_blocks: int  # blocks valid in every group
    miss_reason: str  # why it is not longer; "" when it is all that was asked for
    pending: Pending | None


class PrefixCache:
    """`explains` False: what was evicted is not remembered, and a match does not say why it ends."""

    def __init__(self, groups: Sequence[KVGroupSpec], *, event_capacity: int, explains: bool = True) -> None:
        self._groups = tuple(groups)
        self._block_size = groups[0].block_size
        self._full = tuple(index for index, group in enumerate(groups) if group.window is None)
        self._sliding = tuple(index for index, group in enumerate(groups) if group.window is not None)
        self._ready: tuple[dict[BlockKey, Entry], ...] = tuple({} for _ in groups)
        self._pending: dict[BlockKey, int] = {}
        self._settled: list[BlockKey] = []
        self._ghosts: OrderedDict[BlockKey, None] = OrderedDict()
        self._domains: OrderedDict[bytes, BlockKey] = OrderedDict()
        self._events: deque[KVEvent] = deque(maxlen=event_capacity)
        self._followed = event_capacity > 0
        self._explains = explains
        self.dropped_events = 0
        self._told_dropped = 0  # of those, how many a follower was told of

    # lookup

    def match(self, keys: SequenceKeys, max_blocks: int) -> Match:
        """The longest hit of at most `max_blocks`, with the reason why it ends and what waiting would add."""
        limit = keys.clip(min(max_blocks, len(keys)))
        if limit <= 0:
            return Match(0, "too_short", None)
        run = self._full_run(keys, limit, waiting=False)
        hit = self._fit_windows(keys, run, waiting=False)
        if hit == limit:
            return Match(hit, "", None)
        pending = self._look_ahead(keys, hit, limit) if self._pending else None
        return Match(hit, self._reason(keys, hit, run, pending) if self._explains else "", pending)

    def are_new(self, keys: Sequence[BlockKey]) -> bool:
        """They are all different, and there is no block with any of them."""
        for ready in self._ready:
            if not ready.keys().isdisjoint(keys):
                return False
        return len(keys) < 2 or len(set(keys)) == len(keys)

    def blocks(self, keys: SequenceKeys, group: int, begin: int, end: int) -> tuple[int, ...]:
        """Ids of blocks [begin, end), as far as they are ready."""
        ready = self._ready[group]
        entries = [ready.get(key) for key in islice(keys.keys, begin, end)]
        return tuple(entry.block for entry in entries if entry is not None)

    def has(self, keys: SequenceKeys, index: int) -> bool:
        """Block `index` of the sequence is ready in every group."""
        return all(self._has(group, keys, index, waiting=False) for group in range(len(self._ready)))

    def _has(self, group: int, keys: SequenceKeys, index: int, waiting: bool) -> bool:
        key = keys.keys[index]
        entry = self._ready[group].get(key)
        if entry is None:
            return waiting and key in self._pending
        return entry.tokens == keys.tokens[index]

    def _full_run(self, keys: SequenceKeys, limit: int, *, waiting: bool) -> int:
        """Leading blocks that all full groups have (`waiting`: or will have)."""
        for group in self._full:
            ready = self._ready[group]
            for index, key in enumerate(islice(keys.keys, limit)):
                entry = ready.get(key)
                if entry is None:
                    if waiting and key in self._pending:
                        continue
                elif entry.tokens == keys.tokens[index]:
                    continue
                limit = index
                break
        return limit

    def _fit_windows(self, keys: SequenceKeys, count: int, *, waiting: bool) -> int:
        """The longest hit of at most `count` blocks whose visible blocks are there in all sliding groups.

        Walk down: when block j is missing from the window behind the hit, no hit that ends beyond j can be valid
        (the start of the window only moves left), so the next candidate ends at j. `known[g]` is where the run of
        blocks already seen present begins, so each block is looked at once per group.
        """
        count = keys.clip(count)
        known = dict.fromkeys(self._sliding, count)
        while True:
            hole = None
            for group in self._sliding:
                low = self._groups[group].first_visible_block(count * self._block_size)
                at = min(known[group], count)
                while at > low and self._has(group, keys, at - 1, waiting):
                    at -= 1
                known[group] = at
                if at > low:
                    hole = at - 1
                    break
            if hole is None:
                return count
            count = keys.clip(hole)

    def _look_ahead(self, keys: SequenceKeys, hit: int, limit: int) -> Pending | None:
        run = self._full_run(keys, limit, waiting=True)
        later = self._fit_windows(keys, run, waiting=True)
        for index in range(later - 1, hit - 1, -1):
            owner = self._pending.get(keys.keys[index])
            if owner is not None:
                return Pending(owner, keys.keys[index], (later - hit) * self._block_size)
        return None

    def _reason(self, keys: SequenceKeys, hit: int, run: int, pending: Pending | None) -> str:
        missing = run if self._full and hit == keys.clip(run) else hit
        key = keys.keys[missing]
        for ready in self._ready:
            entry = ready.get(key)
            if entry is not None and entry.tokens != keys.tokens[missing]:
                return "collision"
        if pending is not None or key in self._pending:
            return "in_flight"
        if key in self._ghosts or (self._full and hit < keys.clip(run)):
            return "evicted"
        if hit:
            return "partial"
        seen = self._domains.get(keys.first_digest)
        return "other_salt_or_adapter" if seen is not None and seen != keys.root else "cold"

    # content

    def entries(self) -> Iterator[Entry]:
        for ready in self._ready:
            yield from ready.values()

    def add(self, keys: SequenceKeys, index: int, group: int, block: int) -> Entry | None:
        """Block `index` of the sequence is ready. None when the key is taken: the first block that came keeps it."""
        return self.add_all(keys, group, index, (block,)).get(block)

    def add_all(self, keys: SequenceKeys, group: int, begin: int, blocks: Sequence[int]) -> dict[int, Entry]:
        """Blocks of the sequence, from number `begin` on, are ready (NULL_BLOCK: that one is not there). By block the
        entries that are new: where a key is taken, the first block that came keeps it."""
        ready, known, tokens = self._ready[group], keys.keys, keys.tokens
        parent = known[begin - 1] if begin else keys.root
        made: dict[int, Entry] = {}
        for index, block in enumerate(blocks, begin):
            key = known[index]
            if block and key not in ready:
                made[block] = ready[key] = Entry(block, group, key, parent, tokens[index])
            parent = key
        if not made:
            return made
        if begin == 0 and self._explains and blocks[0] in made:
            _remember(self._domains, keys.first_digest, keys.root, DOMAIN_CAPACITY)
        if self._followed:
            for entry in made.values():
                self._emit(BlockStored(key=entry.key, parent=entry.parent, group=group, num_tokens=self._block_size))
        else:
            self.dropped_events += len(made)
        return made

    def evict(self, entries: Sequence[Entry]) -> None:
        """Their blocks were taken for something else."""
        for entry in entries:
            del self._ready[entry.group][entry.key]
        if self._explains:
            for entry in entries:
                _remember(self._ghosts, entry.key, None, GHOST_CAPACITY)
        if self._followed:
            for entry in entries:
                self._emit(BlockRemoved(key=entry.key, group=entry.group))
        else:
            self.dropped_events += len(entries)

    def clear(self) -> None:
        for ready in self._ready:
            ready.clear()
        self._settled.extend(self._pending)
        self._pending.clear()
        self._ghosts.clear()
        self._domains.clear()
        self._emit(CacheCleared())

    # pending

    def claim(self, keys: SequenceKeys, begin: int, end: int, owner: int) -> list[BlockKey]:
        """`owner` will compute blocks [begin, end): those nobody has or computes become pending. Returns their keys."""
        pending = self._pending
        claimed = [key for key in keys.keys[begin:end] if key not in pending]
        if len(self._ready) == 1:
            ready = self._ready[0]
            claimed = [key for key in claimed if key not in ready]
        else:
            claimed = [key for key in claimed if any(key not in ready for ready in self._ready)]
        pending |= dict.fromkeys(claimed, owner)
        return claimed

    def settle(self, keys: Sequence[BlockKey]) -> None:
        """Pending keys became ready, or their owner gave up."""
        for key in keys:
            del self._pending[key]
        self._settled += keys

    def owner(self, key: BlockKey) -> int | None:
        return self._pending.get(key)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def take_settled(self) -> Sequence[BlockKey]:
        if not self._settled:
            return ()
        settled, self._settled = self._settled, []
        return settled

    # events

    def _emit(self, event: KVEvent) -> None:
        if len(self._events) == self._events.maxlen:
            self.dropped_events += 1
        self._events.append(event)

    def take_events(self) -> KVEvents:
        events, self._told_dropped, dropped = list(self._events), self.dropped_events, self._told_dropped
        self._events.clear()
        return KVEvents(events=events, num_dropped=self._told_dropped - dropped)


def _remember(memory: OrderedDict[bytes, Value], key: bytes, value: Value, capacity: int) -> None:
    """Bounded memory, oldest forgotten first."""
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > capacity:
        memory.popitem(last=False)
