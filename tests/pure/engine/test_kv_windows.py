"""Sliding windows: blocks that are left behind, and what a hit of them promises."""

from __future__ import annotations

import pytest
from tests.pure.engine.kv_kit import SIZE, Kit

from paceline.contracts.kv import NULL_BLOCK


def test_a_window_group_gives_its_old_blocks_back_and_runs_in_a_pool_smaller_than_the_sequence():
    kit = Kit(num_blocks=6, windows=(8,))
    keys = kit.keys(range(200))
    state = kit.admit(keys, 200)
    assert kit.kv.stats().reserved == 5  # ceil((8 + 8) / 4) + 1
    kit.compute(state, keys, 200)
    assert state.tables[0][:48] == [NULL_BLOCK] * 48
    assert sum(block != NULL_BLOCK for block in state.tables[0]) == 2
    kit.kv.release(state)
    assert kit.kv.num_available == 6


def test_a_slid_out_block_stays_findable_until_it_is_evicted():
    kit = Kit(num_blocks=64, windows=(8,))
    kit.run(range(40))
    assert kit.kv.stats().cached == 8
    assert kit.quote(kit.keys(range(20)), 20).hit_tokens == 16
    assert kit.quote(kit.keys(range(41)), 41).hits == ((9, 10),)


def test_a_hit_takes_all_of_a_full_group_and_only_the_window_of_a_sliding_one():
    kit = Kit(windows=(None, 6))
    kit.cache(range(24))
    quote = kit.quote(kit.keys(range(25)), 25)
    assert quote.hit_tokens == 24
    # a query at 24 sees 19 to 24: the blocks from 16 on
    assert [len(blocks) for blocks in quote.hits] == [6, 2]
    state = kit.kv.reserve(quote)
    assert state.tables[1][:4] == [NULL_BLOCK] * 4
    assert len(state.columns()) == 8


def grab(kit: Kit) -> None:
    """Promise all that may be promised to somebody else."""
    keys = kit.keys([7] * SIZE)
    for _ in range(kit.kv.num_available):
        assert kit.kv.reserve(kit.quote(keys, SIZE, use_cache=False)) is not None
    assert kit.kv.num_available == 0


def test_a_shared_window_block_that_slides_out_is_replaced_from_the_promise():
    """One prefills, another has hit the blocks its window leaves behind, and all the rest of the pool is taken."""
    kit = Kit(num_blocks=16, windows=(8,), max_chunk_tokens=4)
    keys = kit.keys(range(100))
    first = kit.admit(keys, 100)
    kit.compute(first, keys, 8)
    second = kit.admit(kit.keys([*range(8), 50]), 9)
    assert second.num_cached_tokens == 8
    for end in range(8, 101, 4):
        grab(kit)
        kit.compute(first, keys, end)


def test_a_hit_that_its_first_holder_keeps_does_not_stand_for_a_promised_block():
    kit = Kit(num_blocks=16, windows=(8,), max_chunk_tokens=8)
    kit.run(range(8))
    keys = kit.keys(range(60))
    state = kit.admit(keys, 60)
    assert state.num_cached_tokens == 8
    for end in range(16, 57, 8):
        grab(kit)
        kit.compute(state, keys, end)


def test_a_hit_never_makes_a_sequence_need_more_than_it_would_alone():
    kit = Kit(num_blocks=5, windows=(8,))
    assert not kit.kv.never_fits(300)
    kit.cache(range(200))
    quote = kit.quote(kit.keys(range(300)), 300)
    assert quote.hit_tokens == 200
    assert (quote.num_new_blocks, quote.num_taken) == (3, 5)
    keys = quote.keys
    state = kit.kv.reserve(quote)
    assert state is not None
    kit.compute(state, keys, 300)


def test_more_in_flight_than_announced_is_caught():
    kit = Kit(num_blocks=32, windows=(4,))
    state = kit.admit(kit.keys(range(60)), 60)
    with pytest.raises(AssertionError, match="planned"):
        kit.kv.grow(state, 60)
