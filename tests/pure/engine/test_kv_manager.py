from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from paceline.contracts.kv import NULL_BLOCK, BlockRemoved, BlockStored, CacheCleared, KVGroupSpec, KVLayout
from paceline.contracts.request import MediaSpan, Request, TokenPrompt, TracePrompt
from paceline.engine.kv_manager import KVManager, Quote, SequenceKeys, SequenceKV

SIZE = 4


class Kit:
    """A manager and short words for what a scheduler does with it."""

    def __init__(self, num_blocks: int = 32, windows: Sequence[int | None] = (None,), **options: Any) -> None:
        groups = tuple(
            KVGroupSpec(
                kind="full" if window is None else "sliding",
                layers=(index,),
                block_size=SIZE,
                bytes_per_block=64,
                window=window,
            )
            for index, window in enumerate(windows)
        )
        self.layout = KVLayout(groups=groups, num_blocks=num_blocks)
        self.kv = KVManager(self.layout, **{"max_chunk_tokens": 8, **options})
        self.next_id = 0

    def keys(self, ids: Sequence[int], **fields: Any) -> SequenceKeys:
        prompt = TokenPrompt(ids=np.asarray(ids, dtype=np.int32))
        return self.kv.keys_for(Request(request_id=0, prompt=prompt, **fields))

    def quote(self, keys: SequenceKeys, known: int, **options: Any) -> Quote:
        self.next_id += 1
        return self.kv.quote(self.next_id, keys, known, **{"max_hit_tokens": known - 1, **options})

    def admit(self, keys: SequenceKeys, known: int, **options: Any) -> SequenceKV:
        state = self.kv.reserve(self.quote(keys, known, **options))
        assert state is not None
        self.kv.check()
        return state

    def compute(self, state: SequenceKV, keys: SequenceKeys, end: int) -> None:
        """In chunks, each applied before the next."""
        while state.num_computed < end:
            target = min(end, state.num_computed + self.kv.max_chunk_tokens)
            assert self.kv.grow(state, target) is not None
            self.kv.commit(state, keys, target)
            self.kv.check()

    def run(self, ids: Sequence[int], **fields: Any) -> SequenceKV:
        keys = self.keys(ids, **fields)
        state = self.admit(keys, len(ids))
        self.compute(state, keys, len(ids))
        return state

    def cache(self, ids: Sequence[int], **fields: Any) -> None:
        self.kv.release(self.run(ids, **fields))
        self.kv.check()


# quote and reserve


def test_a_cold_prompt_is_promised_all_of_its_blocks_and_takes_them_chunk_by_chunk():
    kit = Kit(num_blocks=10)
    keys = kit.keys(range(18))
    quote = kit.quote(keys, 18)
    assert (quote.hit_tokens, quote.num_new_blocks, quote.miss_reason) == (0, 5, "cold")
    assert kit.kv.stats().held == kit.kv.stats().reserved == 0
    state = kit.kv.reserve(quote)
    assert (kit.kv.stats().held, kit.kv.stats().reserved, kit.kv.num_available) == (0, 5, 5)
    assert state.columns() == []
    assert kit.kv.grow(state, 8) == [(0, 0, 1), (0, 1, 2)]
    assert kit.kv.grow(state, 8) == ()
    assert (kit.kv.stats().held, kit.kv.stats().reserved, kit.kv.num_available) == (2, 3, 5)
    assert state.num_blocks == 2


def test_a_prompt_seen_before_is_hit_in_whole_blocks_and_never_to_its_last_token():
    kit = Kit()
    kit.cache(range(16))
    for known, hit in ((16, 12), (17, 16), (18, 16), (4, 0), (5, 4)):
        quote = kit.quote(kit.keys(range(known)), known)
        assert quote.hit_tokens == hit
        assert quote.miss_reason in ("", "too_short")
    state = kit.admit(kit.keys(range(17)), 17)
    assert state.num_cached_tokens == 16
    assert state.columns() == [(0, 0, 1), (0, 1, 2), (0, 2, 3), (0, 3, 4)]
    assert kit.kv.grow(state, 17) == [(0, 4, 5)]


def test_reserve_is_all_or_nothing():
    kit = Kit(num_blocks=4)
    kit.cache(range(8))
    before = kit.kv.stats()
    keys = kit.keys(range(20))
    quote = kit.quote(keys, 20)
    assert quote.hit_tokens == 8
    assert not kit.kv.fits(quote)
    assert kit.kv.reserve(quote) is None
    assert kit.kv.stats() == before
    kit.kv.check()


def test_a_hit_that_is_unreferenced_counts_as_taken():
    kit = Kit(num_blocks=4)
    kit.cache(range(8))
    quote = kit.quote(kit.keys(range(16)), 16)
    assert (quote.num_new_blocks, quote.num_taken) == (2, 4)
    assert kit.kv.fits(quote)
    assert not kit.kv.fits(quote, headroom_blocks=1)


def test_a_hit_that_others_hold_costs_nothing():
    kit = Kit(num_blocks=4)
    kit.run(range(12))
    quote = kit.quote(kit.keys(range(13)), 13)
    assert (quote.hit_tokens, quote.num_taken) == (12, 1)


def test_a_quote_fails_when_a_block_it_would_hit_was_evicted_meanwhile():
    kit = Kit(num_blocks=4)
    kit.cache(range(12))
    quote = kit.quote(kit.keys(range(13)), 13)
    other = kit.run(range(100, 108))
    kit.kv.release(other)
    assert kit.kv.num_available == 4
    assert kit.kv.reserve(quote) is None
    kit.kv.check()


def test_a_quote_fails_when_the_space_went_to_another():
    kit = Kit(num_blocks=4)
    one, two = (kit.quote(kit.keys(range(n, n + 12)), 12) for n in (0, 100))
    assert kit.kv.reserve(one) is not None
    assert kit.kv.reserve(two) is None


def test_a_quote_that_is_still_true_survives_other_changes():
    kit = Kit()
    kit.cache(range(12))
    quote = kit.quote(kit.keys(range(13)), 13)
    kit.run(range(100, 108))
    assert kit.kv.reserve(quote) is not None


def test_what_can_never_fit_is_known_beforehand():
    kit = Kit(num_blocks=8, windows=(None, 8))
    # 8 + 8 tokens of window and chunk: ceil(16 / 4) + 1 = 5 blocks at most for the window group
    assert not kit.kv.never_fits(12)  # 3 + 3
    assert not kit.kv.never_fits(16)  # 4 + 4
    assert kit.kv.never_fits(17)  # 5 + 5


def test_a_promise_is_kept_when_everything_else_is_taken():
    kit = Kit(num_blocks=8)
    keys = kit.keys(range(16))
    state = kit.admit(keys, 16)
    greedy = kit.run(range(100, 116))
    assert kit.kv.num_available == 0
    assert kit.kv.grow(greedy, 17) is None
    kit.compute(state, keys, 16)
    assert kit.kv.grow(state, 17) is None
    kit.kv.check()


def test_growth_is_all_groups_or_none():
    kit = Kit(num_blocks=5, windows=(None, 8))
    state = kit.run(range(8))
    before = kit.kv.stats()
    assert kit.kv.num_available == 1
    assert kit.kv.grow(state, 9) is None
    assert kit.kv.stats() == before


# commit, release, limbo


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


# requests that arrive together


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


# isolation


@pytest.mark.parametrize(
    "fields", [{"cache_salt": b"x"}, {"adapter_digest": b"x"}, {"tenant": "x"}, {"cache_salt": b"x", "tenant": "x"}]
)
def test_nothing_is_hit_across_domains(fields: dict[str, Any]):
    kit = Kit()
    kit.cache(range(16))
    quote = kit.quote(kit.keys(range(16), **fields), 16)
    assert (quote.hit_tokens, quote.miss_reason) == (0, "other_salt_or_adapter")
    kit.cache(range(16), **fields)
    assert kit.quote(kit.keys(range(16), **fields), 16).hit_tokens == 12


def test_nothing_is_keyed_alike_across_model_revisions_and_kv_dtypes():
    def first_key(revision: str, dtype: str) -> bytes:
        group = KVGroupSpec(kind="full", layers=(0,), block_size=SIZE, bytes_per_block=64)
        layout = KVLayout(groups=(group,), num_blocks=4, dtype=dtype)
        kv = KVManager(layout, max_chunk_tokens=8, model_revision=revision)
        request = Request(request_id=0, prompt=TokenPrompt(ids=np.arange(4, dtype=np.int32)))
        return kv.keys_for(request).keys[0]

    keys = {first_key(revision, dtype) for revision in ("a", "b") for dtype in ("float32", "int8")}
    assert len(keys) == 4


def test_tenants_share_only_when_told_to():
    kit = Kit(share_tenants=True)
    kit.cache(range(16), tenant="a")
    assert kit.quote(kit.keys(range(16), tenant="b"), 16).hit_tokens == 12
    assert kit.quote(kit.keys(range(16), tenant="b", cache_salt=b"s"), 16).hit_tokens == 0


def test_traces_hit_by_hash_and_never_by_their_unknown_tail():
    kit = Kit()

    def keys(*hashes: int) -> SequenceKeys:
        prompt = TracePrompt(num_tokens=24, block_hashes=hashes, hash_block_size=8)
        return kit.kv.keys_for(Request(request_id=0, prompt=prompt))

    first = keys(1, 2)
    state = kit.admit(first, 24)
    kit.compute(state, first, 24)
    kit.kv.release(state)
    assert kit.quote(keys(1, 2), 24).hit_tokens == 16
    assert kit.quote(keys(1, 3), 24).hit_tokens == 8
    assert kit.quote(keys(1, 2, 3), 24).hit_tokens == 16


def test_media_with_equal_placeholders_is_told_apart_by_digest():
    kit = Kit()

    def keys(digest: bytes) -> SequenceKeys:
        spans = (MediaSpan(start=5, length=3, digest=digest),)
        prompt = TokenPrompt(ids=np.zeros(17, dtype=np.int32), spans=spans)
        return kit.kv.keys_for(Request(request_id=0, prompt=prompt))

    cat = keys(b"cat")
    state = kit.admit(cat, 17)
    kit.compute(state, cat, 17)
    assert kit.quote(keys(b"cat"), 17).hit_tokens == 16
    assert kit.quote(keys(b"dog"), 17).hit_tokens == 4


# sliding windows


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


# forks


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
    assert fork.copies == []
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


# counters, events, reset


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
    before, events = kit.kv.stats(), len(kit.kv.events())
    assert events == 2
    kit.quote(kit.keys(range(8)), 8)
    kit.quote(kit.keys(range(50, 58)), 8)
    assert kit.kv.stats() == before
    assert kit.kv.events() == []


def test_eviction_is_counted_and_told():
    kit = Kit(num_blocks=2)
    kit.cache(range(8))
    kit.cache(range(100, 108))
    assert kit.kv.stats().evictions == 2
    kinds = [type(event) for event in kit.kv.events()]
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
    kit.kv.events()
    kit.kv.settled()
    assert not kit.kv.reset()
    assert kit.kv.events() == [CacheCleared()]
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
