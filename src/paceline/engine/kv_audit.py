"""What must hold between blocks, sequences and the prefix cache, checked by walking all: for tests and audits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline.contracts.kv import NULL_BLOCK, KVGroupSpec
from paceline.engine.block_count import CountedPool
from paceline.engine.block_pool import BlockPool
from paceline.engine.prefix_cache import Entry, PrefixCache
from paceline.engine.sequence_kv import SequenceKV


def audit(
    groups: Sequence[KVGroupSpec],
    max_chunk_tokens: int,
    pool: BlockPool[Entry],
    cache: PrefixCache,
    live: Mapping[int, SequenceKV],
) -> None:
    """Assert that every reference, promise and pending key is accounted for. `live`: the reservations by request."""
    pool.check()
    sliding = [index for index, group in enumerate(groups) if group.window is not None]
    refs: Counter[int] = Counter()
    for kv in live.values():
        refs.update(kv.sources)
        kv.check(groups, max_chunk_tokens)
        refs.update(block for table in kv.tables for block in table if block != NULL_BLOCK)
        assert all(cache.owner(key) == kv.request_id for key in kv.pending)
    assert dict(refs) == {block: pool.refs(block) for block in refs}
    assert len(refs) == pool.num_held
    for block, backer in pool.backers():
        owner = live[backer]
        assert any(block in owner.tables[group] for group in sliding)
        assert owner.capacity_tokens < owner.num_known_blocks * groups[0].block_size, "backed behind the promise"
    assert pool.reserved == sum(sum(kv.promised) for kv in live.values())
    assert cache.num_pending == sum(len(kv.pending) for kv in live.values())
    for entry in cache.entries():
        assert pool.label(entry.block) is entry


def audit_counts(block_size: int, pool: CountedPool[Entry], live: Mapping[int, SequenceKV]) -> None:
    """The same where blocks have no names."""
    pool.check()
    for kv in live.values():
        assert kv.num_blocks * block_size == kv.capacity_tokens >= kv.num_computed
        assert not any(kv.tables), "a block with a name"
    assert sum(kv.num_blocks for kv in live.values()) == pool.num_held
    assert pool.reserved == sum(sum(kv.promised) for kv in live.values())
