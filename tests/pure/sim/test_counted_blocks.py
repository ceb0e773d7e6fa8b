"""A ledger without names decides what the named one decides, and counts as strictly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pure.sim.kit import replica_spec, run_fleet
from tests.pure.sim.test_digests import digest, plan

from paceline.engine.block_count import CountedPool
from paceline.engine.kv_manager import KVManager
from paceline.sim import fleet


def named(*args: Any, **options: Any) -> KVManager:
    return KVManager(*args, **{**options, "names_blocks": True})


@settings(max_examples=12)
@given(
    num_blocks=st.integers(27, 90),
    block_size=st.sampled_from([4, 16]),
    classes=st.booleans(),
    faults=st.booleans(),
    chunk=st.sampled_from([None, 16]),
)
def test_fleets_do_the_same_with_blocks_that_have_no_names(
    num_blocks: int, block_size: int, classes: bool, faults: bool, chunk: int | None
) -> None:
    asked = plan(classes=classes, faults=faults)
    spec = replica_spec(num_blocks=num_blocks, block_size=block_size, prefix_caching=False, prefill_chunk_tokens=chunk)
    counted, cluster = run_fleet(asked, spec, num_replicas=2, seed=5)
    assert not any(replica.kv.names_blocks for replica in cluster.replicas if replica is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "KVManager", named)
        told, cluster = run_fleet(asked, spec, num_replicas=2, seed=5)
    assert all(replica.kv.names_blocks for replica in cluster.replicas if replica is not None)
    assert digest(counted) == digest(told)


def test_counts_move_between_free_held_limbo_and_promised() -> None:
    pool: CountedPool[int] = CountedPool(10)
    pool.promise(3)
    assert pool.allocate(5, promised=3) == []
    assert (pool.num_free, pool.num_held, pool.num_limbo, pool.available) == (5, 5, 0, 5)
    pool.give_back(2, pin=7)
    pool.give_back(1)
    assert (pool.num_free, pool.num_held, pool.num_limbo, pool.available) == (6, 2, 2, 6)
    pool.unpin(6)
    assert pool.num_limbo == 2
    pool.unpin(7)
    assert (pool.num_free, pool.num_held, pool.num_limbo) == (8, 2, 0)
    pool.check()


def test_what_needs_names_or_more_blocks_than_there_are_is_refused() -> None:
    pool: CountedPool[int] = CountedPool(4)
    pool.allocate(3)
    with pytest.raises(AssertionError):
        pool.allocate(2)
    with pytest.raises(AssertionError, match="more is given back"):
        pool.give_back(4)
    for call in (lambda: pool.ref(1), lambda: pool.deref(1), lambda: pool.set_label(1, 0), lambda: pool.deref_all([1])):
        with pytest.raises(AssertionError, match="name"):
            call()
    with pytest.raises(AssertionError, match="told apart"):
        KVManager(replica_spec().layout, max_chunk_tokens=8, names_blocks=False)
