"""Forks: choices of one call share full blocks and copy the partial one."""

from __future__ import annotations

import pytest
from tests.pure.engine.kv_kit import Kit

from paceline.contracts.kv import NULL_BLOCK


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 5), (6,)])
def test_a_fork_shares_full_blocks_and_copies_the_partial_one(caching: bool, windows: tuple[int | None, ...]):
    kit = Kit(windows=windows, prefix_caching=caching)
    leader = kit.run(range(11))
    quote = kit.quote(kit.keys(range(11)), 11, fork_from=leader, fork_tokens=10)
    assert quote.hit_tokens == 10
    assert quote.tail_copy == tuple(table[2] for table in leader.tables)
    assert quote.num_new_blocks == len(windows)
    fork = kit.kv.reserve(quote)
    kit.kv.check()
    assert fork.num_cached_tokens == 10
    for table, ours in zip(leader.tables, fork.tables, strict=True):
        assert ours[1] == table[1]
        assert ours[2] not in (table[2], NULL_BLOCK)
    assert fork.copies == [(a[2], b[2]) for a, b in zip(leader.tables, fork.tables, strict=True)]
    assert kit.kv.grow(fork, 11) == ()
    assert kit.kv.stats().query_tokens == 11  # the leader's


def test_a_fork_at_a_block_edge_copies_nothing():
    kit = Kit()
    leader = kit.run(range(9))
    fork = kit.admit(kit.keys(range(9)), 9, fork_from=leader, fork_tokens=8)
    assert not fork.copies
    assert fork.tables[0] == leader.tables[0][:2]
    assert len(kit.kv.grow(fork, 9)) == 1


def test_the_block_a_fork_copies_outlives_its_owner_until_the_copy_is_done():
    kit = Kit(num_blocks=8, prefix_caching=False)
    keys = kit.keys(range(11))
    leader = kit.run(range(11))
    source = leader.tables[0][2]
    fork = kit.admit(keys, 11, fork_from=leader, fork_tokens=10)
    kit.kv.release(leader)
    kit.kv.check()
    taken = [block for _, _, block in kit.kv.grow(kit.admit(kit.keys(range(16)), 16), 16)]
    assert source not in taken
    kit.kv.commit(fork, keys, 11)
    kit.kv.check()
    assert kit.kv.num_available == 1


def test_a_fork_that_ends_before_it_ran_gives_the_source_back():
    kit = Kit(num_blocks=8, prefix_caching=False)
    leader = kit.run(range(11))
    fork = kit.admit(kit.keys(range(11)), 11, fork_from=leader, fork_tokens=10)
    kit.kv.release(leader)
    kit.kv.release(fork, in_flight_step=2)
    assert kit.kv.num_limbo == 4
    kit.kv.step_done(2)
    assert kit.kv.num_available == 8


@pytest.mark.parametrize("why", ["gone", "behind", "slid", "another residency", "itself a fresh fork"])
def test_without_a_usable_sibling_a_fork_is_an_ordinary_request(why: str):
    kit = Kit(windows=(None, 5))
    keys = kit.keys(range(11))
    leader = kit.admit(keys, 11)
    kit.compute(leader, keys, 8 if why == "behind" else 11)
    if why == "slid":
        kit.compute(leader, keys, 24)
    if why in ("gone", "another residency"):
        kit.kv.release(leader)
    if why == "another residency":
        kit.kv.reserve(kit.kv.quote(leader.request_id, keys, 11, max_hit_tokens=10))
    if why == "itself a fresh fork":
        leader = kit.admit(kit.keys(range(11)), 11, fork_from=leader, fork_tokens=10)
    quote = kit.quote(kit.keys(range(11)), 11, fork_from=leader, fork_tokens=10)
    assert quote.tail_copy == ()
    assert quote.hit_tokens == 8
    assert quote.sibling is None


def test_a_fork_quote_fails_when_its_sibling_ended_meanwhile():
    kit = Kit()
    leader = kit.run(range(11))
    quote = kit.quote(kit.keys(range(11)), 11, fork_from=leader, fork_tokens=10)
    kit.kv.release(leader)
    assert kit.kv.reserve(quote) is None
