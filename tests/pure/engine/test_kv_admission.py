"""Quotes and reservations: all or nothing, with what is promised kept."""

from __future__ import annotations

from tests.pure.engine.kv_kit import Kit


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
