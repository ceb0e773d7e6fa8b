import sys

import pytest

from paceline.engine.block_pool import BlockPool


def make_pool(num_blocks: int = 6) -> tuple[BlockPool[str], list[str]]:
    evicted: list[str] = []
    return BlockPool(num_blocks, evicted.extend), evicted


def counts(pool: BlockPool[str]) -> tuple[int, int, int, int]:
    pool.check()
    return pool.num_free, pool.num_cached, pool.num_held, pool.num_limbo


def cache(pool: BlockPool[str], label: str) -> int:
    (block,) = pool.allocate(1)
    pool.set_label(block, label)
    pool.deref(block)
    return block


def test_block_zero_is_never_handed_out_and_no_id_twice():
    pool, _ = make_pool(4)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    assert counts(pool) == (0, 0, 4, 0)


def test_making_a_pool_keeps_no_record_per_block():
    def size(pool: BlockPool[str]) -> int:
        return sum(sys.getsizeof(value) for value in (getattr(pool, name) for name in BlockPool.__slots__))

    assert size(make_pool(10)[0]) == size(make_pool(10_000_000)[0])


def test_an_unlabelled_block_becomes_free_and_a_labelled_one_stays_cached():
    pool, _ = make_pool()
    one, two = pool.allocate(2)
    pool.set_label(one, "a")
    pool.deref(one)
    pool.deref(two)
    assert counts(pool) == (5, 1, 0, 0)
    assert pool.is_cached(one)
    assert pool.label(one) == "a"


def test_uncached_blocks_are_taken_before_cached_ones_are_evicted():
    pool, evicted = make_pool(3)
    old = cache(pool, "a")
    pool.allocate(2)
    assert evicted == []
    assert pool.allocate(1) == [old]
    assert evicted == ["a"]
    assert pool.num_evictions == 1


def test_the_block_unused_for_longest_is_evicted_and_a_hit_counts_as_use():
    pool, evicted = make_pool(3)
    a = cache(pool, "a")
    cache(pool, "b")
    cache(pool, "c")
    pool.ref(a)
    pool.deref(a)
    pool.allocate(2)
    assert evicted == ["b", "c"]


def test_a_shared_block_is_held_until_the_last_holder_drops_it():
    pool, _ = make_pool()
    (block,) = pool.allocate(1)
    pool.ref(block)
    pool.deref(block)
    assert pool.refs(block) == 1
    assert counts(pool) == (5, 0, 1, 0)
    pool.deref(block)
    assert counts(pool) == (6, 0, 0, 0)


def test_what_is_promised_cannot_be_taken_by_others():
    pool, _ = make_pool(4)
    pool.promise(3)
    assert pool.available == 1
    with pytest.raises(AssertionError):
        pool.allocate(2)
    pool.allocate(3, promised=2)
    assert (pool.reserved, pool.available) == (1, 0)
    pool.unpromise(1)
    assert pool.available == 1


def test_a_dropped_block_waits_in_limbo_for_the_step_that_may_touch_it():
    pool, _ = make_pool(2)
    (block,) = pool.allocate(1)
    pool.deref(block, pin=7)
    assert counts(pool) == (1, 0, 0, 1)
    assert pool.available == 1
    pool.unpin(6)
    assert counts(pool) == (1, 0, 0, 1)
    pool.unpin(7)
    assert counts(pool) == (2, 0, 0, 0)


def test_limbo_lasts_until_the_last_pin_clears_steps_and_transfers_alike():
    pool, _ = make_pool(2)
    (block,) = pool.allocate(1)
    pool.ref(block)
    pool.set_label(block, "a")
    pool.deref(block, pin=1)
    pool.deref(block, pin="store-1")
    pool.unpin(1)
    assert counts(pool) == (1, 0, 0, 1)
    pool.unpin("store-1")
    assert counts(pool) == (1, 1, 0, 0)


def test_a_labelled_block_in_limbo_can_be_hit():
    pool, _ = make_pool(2)
    (block,) = pool.allocate(1)
    pool.set_label(block, "a")
    pool.deref(block, pin=1)
    assert pool.cost_of_ref(block) == 0
    pool.ref(block)
    assert counts(pool) == (1, 0, 1, 0)
    pool.unpin(1)
    assert counts(pool) == (1, 0, 1, 0)


def test_a_block_whose_label_is_dropped_is_free_and_not_reported_as_evicted():
    pool, evicted = make_pool(2)
    block = cache(pool, "a")
    pool.drop_label(block)
    assert counts(pool) == (2, 0, 0, 0)
    pool.allocate(2)
    assert evicted == []


def test_sharing_a_backed_block_costs_what_its_backer_will_want_back():
    pool, _ = make_pool(4)
    (block,) = pool.allocate(1)
    pool.back(block, 1)
    assert pool.cost_of_ref(block) == 1
    pool.ref(block)
    assert pool.available == 2
    assert not pool.unback(block, 2)
    assert pool.unback(block, 1)
    pool.deref(block)
    assert pool.available == 3
    pool.promise(1)  # what the backer does then: always possible
    pool.check()


def test_a_pin_left_by_a_sharer_is_a_claim_on_a_backed_block():
    pool, _ = make_pool(4)
    (block,) = pool.allocate(1)
    pool.back(block, 1)
    pool.ref(block)
    pool.deref(block, pin=5)
    assert pool.available == 2
    assert pool.unback(block, 1)
    pool.deref(block)
    assert counts(pool) == (3, 0, 0, 1)
    assert pool.available == 3


def test_every_change_moves_the_version():
    pool, _ = make_pool(4)
    seen = {pool.version}
    (block,) = pool.allocate(1)
    for change in (
        lambda: pool.ref(block),
        lambda: pool.deref(block),
        lambda: pool.promise(1),
        lambda: pool.unpromise(1),
        lambda: pool.back(block, 1),
        lambda: pool.unback(block, 1),
        lambda: pool.deref(block, pin=1),
        lambda: pool.unpin(1),
    ):
        assert pool.version not in seen or len(seen) == 1
        seen.add(pool.version)
        before = pool.version
        change()
        assert pool.version > before


@pytest.mark.parametrize("corrupt", ["_returned", "_cached"])
def test_check_notices_a_block_in_two_states(corrupt: str):
    pool, _ = make_pool(4)
    (block,) = pool.allocate(1)
    if corrupt == "_returned":
        pool._returned.append(block)
    else:
        pool._cached[block] = None
    with pytest.raises(AssertionError, match="two"):
        pool.check()
