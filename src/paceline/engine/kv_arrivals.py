"""KV that was computed elsewhere, or was brought back from a lower tier, as blocks that nobody holds and everybody may
find."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.engine.block_pool import BlockPool
from paceline.engine.prefix_cache import Entry, PrefixCache, SequenceKeys


def take_in(
    pool: BlockPool[Entry],
    cache: PrefixCache,
    keys: SequenceKeys,
    num_blocks: int,
    came: Sequence[int] | None = None,
) -> int:
    """Make the first `num_blocks` blocks of a sequence findable, as the newest of what is cached. Returns how many of
    them now are, from the start: fewer where there was no room for all. Full groups only.

    `came`: these alone came, and what is there of the others makes no room for them and is as new as they are."""
    num_blocks = min(num_blocks, len(keys))
    held = () if came is None else cache.blocks(keys, 0, 0, num_blocks)
    for block in held:
        pool.ref(block)
    missing = [index for index in (range(num_blocks) if came is None else came) if not cache.has(keys, index)]
    taken = pool.allocate(min(len(missing), max(0, pool.available)))
    for index, block in zip(missing, taken, strict=False):
        pool.set_labels(cache.add_all(keys, 0, index, (block,)))
    pool.deref_all(taken[::-1])  # of a sequence the end is evicted before the start
    pool.deref_all(held[::-1])
    return missing[len(taken)] if len(taken) < len(missing) else num_blocks
