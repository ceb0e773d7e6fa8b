"""KV that came from another engine: found like one's own, never at the price of what is held."""

from __future__ import annotations

import numpy as np
from tests.pure.sim.kit import replica_spec

from paceline.contracts.request import Request, TokenPrompt
from paceline.engine.kv_manager import KVManager

SIZE = 4


def manager(num_blocks: int = 16) -> KVManager:
    return KVManager(replica_spec(num_blocks=num_blocks, block_size=SIZE).layout, max_chunk_tokens=64)


def request(request_id: int, num: int, first: int = 1000) -> Request:
    return Request(request_id=request_id, prompt=TokenPrompt(ids=np.arange(first, first + num, dtype=np.int32)))


def hits(kv: KVManager, asked: Request) -> int:
    return kv.quote(
        asked.request_id, kv.keys_for(asked), asked.num_prompt, max_hit_tokens=asked.num_prompt - 1
    ).hit_tokens


def test_what_arrived_is_hit_in_whole_blocks() -> None:
    kv, asked = manager(), request(1, 22)
    assert hits(kv, asked) == 0
    assert kv.take_in(kv.keys_for(asked), 22) == 20
    kv.check()
    assert hits(kv, asked) == 20
    assert hits(kv, request(2, 22, first=5000)) == 0
    stats = kv.stats()
    assert (stats.cached, stats.held, stats.free) == (5, 0, 11)


def test_what_is_there_already_is_not_taken_in_twice() -> None:
    kv, asked = manager(), request(1, 16)
    assert kv.take_in(kv.keys_for(asked), 8) == 8
    assert kv.take_in(kv.keys_for(asked), 16) == 16
    assert kv.stats().cached == 4
    kv.check()


def test_without_room_the_start_is_taken_in_and_nothing_held_is_touched() -> None:
    kv, holder = manager(num_blocks=6), request(1, 15, first=7000)
    quote = kv.quote(1, kv.keys_for(holder), 15, max_hit_tokens=14)
    held = kv.reserve(quote)
    assert held is not None
    kv.grow(held, 15)
    asked = request(2, 20)
    assert kv.take_in(kv.keys_for(asked), 20) == 8
    kv.check()
    assert hits(kv, asked) == 8
    assert kv.stats().held == 4
    kv.release(held)
    kv.check()


def test_of_what_arrived_the_end_is_evicted_first() -> None:
    kv, asked = manager(num_blocks=5), request(1, 16)
    kv.take_in(kv.keys_for(asked), 16)
    other = request(2, 8, first=9000)
    held = kv.reserve(kv.quote(2, kv.keys_for(other), 8, max_hit_tokens=7))
    assert held is not None
    kv.grow(held, 8)
    assert hits(kv, asked) == 12
    kv.check()


def test_single_blocks_that_came_do_not_push_out_what_they_complete() -> None:
    """The start of a sequence is the oldest in a full cache; its end comes back, and only its end."""
    kv, asked, other = manager(num_blocks=6), request(1, 20), request(2, 16, first=9000)
    kv.take_in(kv.keys_for(asked), 8)
    kv.take_in(kv.keys_for(other), 16)
    assert kv.take_in(kv.keys_for(asked), 20, [3, 4]) == 20  # of what was to come, all is there
    assert hits(kv, asked) == 8  # block 2 was not
    assert hits(kv, other) == 8  # its end made room
    assert kv.take_in(kv.keys_for(asked), 12, [2]) == 12
    assert hits(kv, asked) == 16
    kv.check()


def test_nothing_came_and_what_is_there_is_as_new_as_if_it_had() -> None:
    kv, asked, other = manager(num_blocks=4), request(1, 8), request(2, 8, first=9000)
    for each in (asked, other):
        kv.take_in(kv.keys_for(each), 8)
    kv.take_in(kv.keys_for(asked), 8, [])
    kv.take_in(kv.keys_for(request(3, 8, first=5000)), 8)
    assert hits(kv, request(4, 9)) == 8
    assert hits(kv, other) == 0
    kv.check()
