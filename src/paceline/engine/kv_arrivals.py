"""KV that was computed elsewhere and is there now: blocks that nobody holds and everybody may find."""

from __future__ import annotations

from paceline.engine.block_pool import BlockPool
from paceline.engine.prefix_cache import Entry, PrefixCache, SequenceKeys


def take_in(pool: BlockPool[Entry], cache: PrefixCache, keys: SequenceKeys, num_blocks: int) -> int:
    """Make the first `num_blocks` blocks of a sequence findable, as the newest of what is cached. Returns how many of
    them now are, from the start: fewer where there was no room for all. Full groups only."""
    num_blocks = min(num_blocks, len(keys))
    missing = [index for index in range(num_blocks) if not cache.has(keys, index)]
    taken = pool.allocate(min(len(missing), max(0, pool.available)))
    for index, block in zip(missing, taken, strict=False):
        pool.set_labels(cache.add_all(keys, 0, index, (block,)))
    pool.deref_all(taken[::-1])  # of a sequence the end is evicted before the start
    return missing[len(taken)] if len(taken) < len(missing) else num_blocks
