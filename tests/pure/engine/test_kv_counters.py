"""Counters, events, reset, and the check itself."""

from __future__ import annotations

import pytest
from tests.pure.engine.kv_kit import Kit

from paceline.contracts.kv import BlockRemoved, BlockStored, CacheCleared


def test_hit_rate_counts_first_admissions_and_saved_tokens_count_all():
    kit = Kit()
    keys = kit.keys(range(20))
    state = kit.admit(keys, 20)
    kit.compute(state, keys, 20)
    kit.admit(kit.keys(range(20)), 20)
    kit.admit(kit.keys(range(20)), 20, readmission=True)
    kit.admit(kit.keys(range(20)), 20, fork_from=state, fork_tokens=19)
    stats = kit.kv.stats()
    assert (stats.query_tokens, stats.hit_tokens, stats.saved_tokens) == (40, 16, 16 + 16 + 19)
    assert stats.hit_rate == 0.4
    assert stats.miss_reasons == {"cold": 1}


def test_requests_that_do_not_look_say_why():
    kit = Kit()
    kit.cache(range(16))
    assert kit.quote(kit.keys(range(16)), 16, use_cache=False).miss_reason == "prompt_logits"
    off = Kit(prefix_caching=False)
    off.cache(range(16))
    assert off.quote(off.keys(range(16)), 16).miss_reason == "disabled"
    assert off.kv.stats().cached == 0


def test_who_needs_prompt_logits_still_feeds_the_cache():
    kit = Kit()
    keys = kit.keys(range(16))
    state = kit.admit(keys, 16, use_cache=False)
    kit.compute(state, keys, 16)
    assert kit.quote(kit.keys(range(16)), 16).hit_tokens == 12


def test_a_quote_counts_nothing():
    kit = Kit()
    kit.cache(range(8))
    before, events = kit.kv.stats(), len(kit.kv.take_events().events)
    assert events == 2
    kit.quote(kit.keys(range(8)), 8)
    kit.quote(kit.keys(range(50, 58)), 8)
    assert kit.kv.stats() == before
    assert kit.kv.take_events().events == []


def test_eviction_is_counted_and_told():
    kit = Kit(num_blocks=2)
    kit.cache(range(8))
    kit.cache(range(100, 108))
    assert kit.kv.stats().evictions == 2
    kinds = [type(event) for event in kit.kv.take_events().events]
    assert kinds == [BlockStored, BlockStored, BlockRemoved, BlockRemoved, BlockStored, BlockStored]


def test_a_reset_makes_everything_unfindable_and_running_requests_go_on():
    kit = Kit()
    kit.cache(range(100, 112))
    keys = kit.keys(range(8))
    state = kit.admit(keys, 8)
    kit.compute(state, keys, 8)
    late = kit.keys(range(20))
    pending = kit.admit(late, 20)
    assert pending.num_cached_tokens == 8
    kit.kv.take_events()
    kit.kv.settled()
    assert not kit.kv.reset()
    assert kit.kv.take_events().events == [CacheCleared()]
    assert kit.kv.settled() == late.keys[2:]
    kit.kv.check()
    keys.extend(range(8, 12))
    kit.compute(state, keys, 12)
    kit.compute(pending, late, 20)
    for ids in (range(100, 112), range(20)):
        assert kit.quote(kit.keys(ids), len(ids)).hit_tokens == 0
    kit.kv.release(state)
    kit.kv.release(pending)
    assert kit.kv.stats().free == 32
    kit.cache(range(8))
    assert kit.quote(kit.keys(range(9)), 9).hit_tokens == 8


def test_a_reset_of_an_idle_cache_leaves_nothing_behind():
    kit = Kit()
    kit.cache(range(8))
    assert kit.kv.reset()
    assert kit.kv.stats().free == 32


def test_a_quote_from_before_a_reset_does_not_bring_old_blocks_back():
    kit = Kit()
    kit.cache(range(8))
    quote = kit.quote(kit.keys(range(9)), 9)
    kit.kv.reset()
    assert kit.kv.reserve(quote) is None


def test_a_fork_of_a_request_from_before_a_reset_is_not_found_by_others():
    kit = Kit()
    keys = kit.keys(range(11))
    leader = kit.admit(keys, 11)
    kit.compute(leader, keys, 11)
    kit.kv.reset()
    ours = kit.keys(range(11))
    fork = kit.admit(ours, 11, fork_from=leader, fork_tokens=10)
    ours.extend(range(11, 20))
    kit.compute(fork, ours, 20)
    assert kit.quote(kit.keys(range(20)), 20).hit_tokens == 0
    kit.cache(range(8))  # the start of the chain, computed anew
    assert kit.quote(kit.keys(range(20)), 20).hit_tokens == 8


def test_nobody_waits_for_a_fork_whose_blocks_will_not_be_found():
    kit = Kit()
    leader = kit.run(range(11))
    kit.kv.reset()
    anew = kit.admit(kit.keys(range(9)), 9)
    kit.admit(kit.keys(range(30)), 30, fork_from=leader, fork_tokens=10)
    pending = kit.quote(kit.keys(range(30)), 30).pending
    assert (pending.owner, pending.num_tokens) == (anew.request_id, 8)


def test_check_notices_a_lost_reference():
    kit = Kit()
    state = kit.run(range(8))
    kit.kv._pool.ref(state.tables[0][0])
    with pytest.raises(AssertionError):
        kit.kv.check()
