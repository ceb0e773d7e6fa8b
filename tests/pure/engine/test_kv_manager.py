"""The life of blocks: commit, release, limbo, and requests that arrive together."""

from __future__ import annotations

import pytest
from tests.pure.engine.kv_kit import Kit


def test_generated_tokens_are_found_by_the_next_turn():
    kit = Kit()
    keys = kit.keys(range(6))
    state = kit.admit(keys, 6)
    kit.compute(state, keys, 6)
    for token in range(6, 13):
        keys.extend([token])
        kit.compute(state, keys, token + 1)
    kit.kv.release(state)
    assert kit.quote(kit.keys(range(30)), 30).hit_tokens == 12


def test_late_keys_only_delay_when_a_block_is_found():
    kit = Kit()
    keys = kit.keys(range(6))
    state = kit.admit(keys, 6)
    kit.compute(state, keys, 11)
    assert kit.quote(kit.keys(range(30)), 30).hit_tokens == 4
    keys.extend(range(6, 12))
    kit.compute(state, keys, 12)
    assert kit.quote(kit.keys(range(30)), 30).hit_tokens == 12


def test_a_block_is_found_only_when_its_computation_is_applied():
    kit = Kit()
    keys = kit.keys(range(9))
    state = kit.admit(keys, 9)
    kit.kv.grow(state, 8)
    assert kit.quote(kit.keys(range(9)), 9).hit_tokens == 0
    kit.kv.commit(state, keys, 7)
    assert kit.quote(kit.keys(range(9)), 9).hit_tokens == 4


def test_of_what_stays_cached_the_tail_is_evicted_before_the_head():
    kit = Kit(num_blocks=4)
    kit.cache(range(16))
    kit.cache(range(100, 104))
    assert kit.quote(kit.keys(range(17)), 17).hit_tokens == 12
    assert kit.quote(kit.keys(range(17)), 17).miss_reason == "evicted"


def test_a_block_dropped_by_a_row_in_flight_waits_for_that_step():
    kit = Kit(num_blocks=4)
    state = kit.run(range(10))
    kit.kv.release(state, in_flight_step=5)
    assert (kit.kv.stats().limbo, kit.kv.num_limbo, kit.kv.num_available) == (3, 3, 1)
    kit.kv.step_done(4)
    assert kit.kv.num_limbo == 3
    assert kit.quote(kit.keys(range(10)), 10).hit_tokens == 8
    kit.kv.step_done(5)
    stats = kit.kv.stats()
    assert (stats.limbo, stats.cached, stats.free) == (0, 2, 2)


def test_a_preempted_request_finds_its_own_blocks_even_in_limbo():
    kit = Kit(num_blocks=4)
    keys = kit.keys(range(10))
    state = kit.admit(keys, 10)
    kit.compute(state, keys, 10)
    kit.kv.release(state, in_flight_step=1)
    again = kit.admit(keys, 10, readmission=True)
    assert again.num_cached_tokens == 8
    kit.kv.step_done(1)
    kit.kv.check()
    assert kit.kv.stats().hit_tokens == 0
    assert kit.kv.stats().saved_tokens == 8


def test_a_step_that_is_done_cannot_be_waited_for():
    kit = Kit()
    state = kit.run(range(4))
    kit.kv.step_done(3)
    with pytest.raises(AssertionError, match="for ever"):
        kit.kv.release(state, in_flight_step=3)


def test_releasing_twice_is_an_error():
    kit = Kit()
    state = kit.run(range(4))
    kit.kv.release(state)
    with pytest.raises(AssertionError, match="twice"):
        kit.kv.release(state)


@pytest.mark.parametrize("length", [3, 4, 5, 8])
def test_ending_at_a_block_edge_frees_each_block_once(length: int):
    kit = Kit(num_blocks=8)
    state = kit.run(range(length))
    assert kit.kv.grow(state, length + 1) is not None
    kit.kv.release(state, in_flight_step=1)
    kit.kv.step_done(1)
    kit.kv.check()
    assert kit.kv.num_available == 8


@pytest.mark.parametrize("computed", [0, 5, 8, 15])
def test_whenever_a_request_ends_the_pool_is_back_at_its_baseline(computed: int):
    kit = Kit(num_blocks=16, windows=(None, 5))
    keys = kit.keys(range(15))
    state = kit.admit(keys, 15)
    kit.compute(state, keys, computed)
    kit.kv.release(state)
    stats = kit.kv.stats()
    assert (stats.held, stats.limbo, stats.reserved, kit.kv.num_available) == (0, 0, 0, 16)


def test_two_who_computed_the_same_block_both_keep_theirs_and_the_first_is_found():
    kit = Kit()
    keys = [kit.keys(range(9)) for _ in range(2)]
    states = [kit.admit(k, 9, use_cache=False) for k in keys]
    for state, k in zip(states, keys, strict=True):
        kit.compute(state, k, 9)
    assert kit.quote(kit.keys(range(9)), 9).hits == ((1, 2),)
    kit.kv.release(states[0])
    kit.kv.release(states[1])
    assert (kit.kv.stats().cached, kit.kv.stats().free) == (2, 30)


def test_the_second_of_two_equal_prompts_learns_who_computes_it_and_when_to_look_again():
    kit = Kit()
    keys = kit.keys(range(18))
    first = kit.admit(keys, 18)
    other = kit.keys(range(18))
    quote = kit.quote(other, 18)
    assert quote.miss_reason == "in_flight"
    assert (quote.pending.owner, quote.pending.num_tokens) == (first.request_id, 16)
    kit.compute(first, keys, 8)
    assert quote.pending.key not in kit.kv.settled()
    kit.compute(first, keys, 18)
    assert quote.pending.key in kit.kv.settled()
    assert kit.admit(other, 18).num_cached_tokens == 16
    assert kit.kv.stats().held == 5


def test_an_owner_that_goes_away_gives_up_what_it_owed():
    kit = Kit()
    keys = kit.keys(range(18))
    first = kit.admit(keys, 18)
    kit.compute(first, keys, 8)
    pending = kit.quote(kit.keys(range(18)), 18).pending
    assert pending.num_tokens == 8
    kit.kv.release(first)
    assert set(kit.kv.settled()) == set(keys.keys)
    quote = kit.quote(kit.keys(range(18)), 18)
    assert quote.pending is None
    assert quote.hit_tokens == 8


def test_pending_blocks_of_another_domain_are_not_waited_for():
    kit = Kit()
    kit.admit(kit.keys(range(18)), 18)
    assert kit.quote(kit.keys(range(18), cache_salt=b"s"), 18).pending is None
