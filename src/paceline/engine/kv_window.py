"""How a sliding window pays for its blocks: its promise is a peak, not a sum, because it drops blocks as it goes.

While a sequence runs to the end of its known tokens, its own blocks in a window group and what is still promised to it
add up to the peak, or to all that is left to come. *Own* blocks are those it took out of the pool under the promise:
new ones, and hits that nobody held. They are *backed*: when the window leaves one behind, one more is promised in its
stead. The pool sees to it that this is always possible (`BlockPool.back`). Hits that others hold are not backed, as
dropping them may bring nothing back.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.contracts.kv import NULL_BLOCK, KVGroupSpec
from paceline.engine.block_pool import BlockPool
from paceline.engine.prefix_cache import Entry
from paceline.engine.sequence_kv import SequenceKV


def peak_promise(
    pool: BlockPool[Entry], spec: KVGroupSpec, hits: Sequence[int], num_tokens: int, num_rest: int, chunk: int
) -> int:
    """Blocks to promise on top of `hits` for a sequence of `num_tokens` with `num_rest` blocks still to come."""
    own = sum(pool.is_cached(block) for block in hits)
    return min(num_rest, spec.max_blocks(num_tokens, chunk) - own)


def grew(pool: BlockPool[Entry], kv: SequenceKV, group: int, begin: int) -> None:
    """The table of `group` got its blocks from `begin` on: back them, or end the promise behind the known tokens."""
    table = kv.tables[group]
    rest = max(0, kv.num_known_blocks - len(table))
    excess = max(0, kv.promised[group] - rest)
    kv.promised[group] -= excess
    pool.unpromise(excess)
    if rest:
        for block in table[begin:]:
            pool.back(block, kv.request_id)
    else:
        for block in table[kv.first[group] : begin]:
            pool.unback(block, kv.request_id)


def slide(pool: BlockPool[Entry], spec: KVGroupSpec, kv: SequenceKV, group: int) -> int:
    """Drop the blocks that no position still to be computed sees, in flight or not.

    Returns the number of computed tokens at which the next block can go.
    """
    table = kv.tables[group]
    rest = kv.num_known_blocks - len(table)
    visible = spec.first_visible_block(kv.num_computed)
    for index in range(kv.first[group], visible):
        block, table[index] = table[index], NULL_BLOCK
        kv.num_blocks -= 1
        backed = rest > 0 and pool.unback(block, kv.request_id)
        pool.deref(block)
        if backed and kv.promised[group] < rest:
            pool.promise(1)
            kv.promised[group] += 1
    kv.first[group] = max(kv.first[group], visible)
    assert spec.window is not None
    return (kv.first[group] + 1) * spec.block_size + spec.window - 1


def end_promise(pool: BlockPool[Entry], kv: SequenceKV, group: int) -> None:
    """The sequence ends: its blocks need no stand-in any more."""
    for block in kv.tables[group][kv.first[group] :]:
        pool.unback(block, kv.request_id)
