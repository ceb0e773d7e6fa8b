import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.kv import BlockRemoved, BlockStored, CacheCleared, CacheDomain, KVGroupSpec
from paceline.contracts.request import MediaSpan, Request, TokenPrompt, TracePrompt, prompt_keys
from paceline.engine import prefix_cache
from paceline.engine.prefix_cache import Entry, Match, Pending, PrefixCache, SequenceKeys

DOMAIN = CacheDomain(model_revision="r", kv_dtype="float32")


def groups(*windows: int | None, block_size: int = 4) -> list[KVGroupSpec]:
    return [
        KVGroupSpec(
            kind="full" if window is None else "sliding",
            layers=(index,),
            block_size=block_size,
            bytes_per_block=64,
            window=window,
        )
        for index, window in enumerate(windows)
    ]


def make_keys(ids: object, *, prior: tuple[int, ...] = (), spans: tuple[MediaSpan, ...] = (), domain=DOMAIN, size=4):
    prompt = TokenPrompt(ids=np.asarray(ids, dtype=np.int32), spans=spans)
    return SequenceKeys(Request(request_id=0, prompt=prompt, prior_output=prior), domain, size)


def fill(cache: PrefixCache, keys: SequenceKeys, begin: int = 0, end: int | None = None, num_groups: int = 1) -> list:
    indices = range(begin, len(keys) if end is None else end)
    return [cache.add(keys, i, g, 100 * g + i + 1) for i in indices for g in range(num_groups)]


# keys


def test_keys_are_those_of_the_prompt_and_grow_with_the_output_as_if_it_had_been_prompt():
    grown = make_keys(range(6))
    assert len(grown) == 1
    for token in range(6, 11):
        grown.extend([token])
    grown.extend([11, 12])
    whole = make_keys(range(13))
    assert grown.keys == whole.keys == make_keys(range(6), prior=tuple(range(6, 13))).keys
    assert grown.keys == prompt_keys(TokenPrompt(ids=np.arange(13, dtype=np.int32)), DOMAIN, 4)
    assert grown.tokens == whole.tokens


def test_several_blocks_may_come_at_once():
    keys = make_keys([0])
    keys.extend(range(1, 14))
    assert keys.keys == make_keys(range(14)).keys


def test_a_block_with_media_keeps_its_key_when_it_is_filled_by_output():
    span = MediaSpan(start=4, length=2, digest=b"cat")
    keys = make_keys(range(6), spans=(span,))
    keys.extend([6, 7])
    assert keys.keys == make_keys(range(8), spans=(span,)).keys
    assert keys.keys[1] != make_keys(range(8)).keys[1]


def test_no_key_follows_the_unknown_tail_of_a_trace():
    trace = TracePrompt(num_tokens=10, block_hashes=(1,), hash_block_size=8)
    keys = SequenceKeys(Request(request_id=0, prompt=trace), DOMAIN, 4)
    assert len(keys) == 2
    assert keys.closed
    keys.extend(range(20))
    assert len(keys) == 2


def test_a_fully_hashed_trace_goes_on_into_its_output():
    trace = TracePrompt(num_tokens=8, block_hashes=(1,), hash_block_size=8)
    keys = SequenceKeys(Request(request_id=0, prompt=trace), DOMAIN, 4)
    keys.extend(range(4))
    assert len(keys) == 3


def test_without_caching_there_are_no_keys():
    prompt = TokenPrompt(ids=np.arange(9, dtype=np.int32))
    keys = SequenceKeys(Request(request_id=0, prompt=prompt), DOMAIN, 4, enabled=False)
    keys.extend(range(8))
    assert len(keys) == 0
    assert keys.closed


def test_a_hit_does_not_end_inside_a_media_span():
    spans = (MediaSpan(start=2, length=3, digest=b"a"), MediaSpan(start=5, length=9, digest=b"b"))
    keys = make_keys(range(24), spans=spans)
    assert [keys.clip(n) for n in range(6)] == [0, 0, 0, 0, 4, 5]
    cache = PrefixCache(groups(None), event_capacity=100)
    fill(cache, keys, end=3)
    assert cache.match(keys, 5).num_blocks == 0


# matching


def test_a_hit_is_the_longest_ready_prefix():
    cache = PrefixCache(groups(None), event_capacity=100)
    keys = make_keys(range(20))
    fill(cache, keys, end=3)
    assert cache.match(keys, 5) == Match(3, "partial", None)
    assert cache.match(keys, 2) == Match(2, "", None)
    assert cache.blocks(keys, 0, 1, 3) == (2, 3)


def test_a_hole_ends_the_hit_in_a_full_group():
    cache = PrefixCache(groups(None), event_capacity=100)
    keys = make_keys(range(20))
    fill(cache, keys, end=1)
    fill(cache, keys, begin=2)
    assert cache.match(keys, 5).num_blocks == 1


def test_a_window_needs_only_the_blocks_a_query_behind_the_hit_still_sees():
    cache = PrefixCache(groups(None, 5), event_capacity=100)
    keys = make_keys(range(24))
    for index in range(5):
        cache.add(keys, index, 0, index + 1)
    cache.add(keys, 2, 1, 11)
    cache.add(keys, 3, 1, 12)
    # a query at 16 sees 12 to 16: block 3. At 20 it sees 16 to 20: block 4, which the window group lacks.
    assert cache.match(keys, 5) == Match(4, "evicted", None)


def test_a_window_of_one_token_needs_no_block_at_all():
    cache = PrefixCache(groups(None, 1), event_capacity=100)
    keys = make_keys(range(24))
    for index in range(5):
        cache.add(keys, index, 0, index + 1)
    assert cache.match(keys, 5) == Match(5, "", None)


@settings(max_examples=200)
@given(
    windows=st.lists(st.one_of(st.none(), st.integers(1, 14)), min_size=1, max_size=3),
    present=st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=3, max_size=3),
    claimed=st.lists(st.booleans(), min_size=9, max_size=9),
    span=st.tuples(st.integers(0, 26), st.integers(1, 6)),
    limit=st.integers(0, 9),
)
def test_the_walk_finds_what_trying_every_length_finds(windows, present, claimed, span, limit):
    size = 3
    specs = groups(*windows, block_size=size)
    cache = PrefixCache(specs, event_capacity=1000)
    keys = make_keys(range(28), spans=(MediaSpan(start=span[0], length=span[1], digest=b"m"),), size=size)
    for group in range(len(specs)):
        for index in range(9):
            if present[group][index]:
                cache.add(keys, index, group, 100 * group + index + 1)
    owned = [key for index in range(9) if claimed[index] for key in cache.claim(keys, index, index + 1, 42)]

    def longest(has) -> int:
        def valid(count: int) -> bool:
            end = count * size
            inside = span[0] < end < span[0] + span[1]
            return not inside and all(
                has(group, index)
                for group, spec in enumerate(specs)
                for index in range(count)
                if spec.window is None or any(end - p < spec.window for p in range(index * size, (index + 1) * size))
            )

        return max(count for count in range(limit + 1) if valid(count))

    now = longest(lambda group, index: present[group][index])
    later = longest(lambda group, index: present[group][index] or keys.keys[index] in owned)
    match = cache.match(keys, limit)
    assert match.num_blocks == now
    assert (match.pending is not None) == (later > now)
    if match.pending is not None:
        assert match.pending.num_tokens == (later - now) * size
        waited = keys.keys.index(match.pending.key)
        assert now <= waited < later
        assert not any(keys.keys[index] in owned for index in range(waited + 1, later))


def test_equal_keys_with_other_tokens_are_a_miss(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_cache, "chain_keys", lambda _, blocks: [b"the same one key"] * len(blocks))
    cache = PrefixCache(groups(None), event_capacity=100)
    fill(cache, make_keys([1, 2, 3, 4]))
    assert cache.match(make_keys([1, 2, 3, 4]), 1) == Match(1, "", None)
    other = make_keys([1, 2, 3, 5])
    assert cache.match(other, 1) == Match(0, "collision", None)
    assert cache.add(other, 0, 0, 9) is None


def test_equal_keys_with_other_tokens_are_a_miss_in_a_window_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_cache, "chain_keys", lambda _, blocks: [b"the same one key"] * len(blocks))
    cache = PrefixCache(groups(6), event_capacity=100)
    fill(cache, make_keys([1, 2, 3, 4]))
    assert cache.match(make_keys([1, 2, 3, 5]), 1) == Match(0, "collision", None)


def test_the_first_block_that_came_keeps_the_key():
    cache = PrefixCache(groups(None), event_capacity=100)
    keys = make_keys(range(4))
    assert isinstance(cache.add(keys, 0, 0, 1), Entry)
    assert cache.add(keys, 0, 0, 2) is None
    assert cache.blocks(keys, 0, 0, 1) == (1,)


# pending


def test_pending_blocks_are_reported_with_the_last_one_to_wait_for_and_what_that_gains():
    cache = PrefixCache(groups(None), event_capacity=100)
    keys = make_keys(range(20))
    fill(cache, keys, end=1)
    assert cache.claim(keys, 0, 4, owner=7) == keys.keys[1:4]
    assert cache.match(keys, 5) == Match(1, "in_flight", Pending(7, keys.keys[3], 12))
    assert cache.match(keys, 2) == Match(1, "in_flight", Pending(7, keys.keys[1], 4))


def test_a_pending_key_has_one_owner():
    cache = PrefixCache(groups(None), event_capacity=100)
    keys = make_keys(range(8))
    assert cache.claim(keys, 0, 1, owner=1) == keys.keys[:1]
    assert cache.claim(keys, 0, 2, owner=2) == keys.keys[1:]
    assert [cache.owner(key) for key in keys.keys] == [1, 2]


@pytest.mark.parametrize("capacity", [0, 100])
def test_blocks_told_of_at_once_are_those_told_of_one_by_one(capacity: int):
    keys = make_keys(range(26))
    one, many = (PrefixCache(groups(None), event_capacity=capacity) for _ in range(2))
    for cache in (one, many):
        cache.add(keys, 4, 0, 90)  # its key is taken
    blocks = [11, 12, 0, 14, 15]  # the third is not there
    singly = [entry for i, b in enumerate(blocks, 1) if b and (entry := one.add(keys, i, 0, b))]
    assert list(many.add_all(keys, 0, 1, blocks).items()) == [(entry.block, entry) for entry in singly]
    assert [entry.block for entry in singly] == [11, 12, 15]
    assert list(many.entries()) == list(one.entries())
    assert many.take_events() == one.take_events()
    many.evict(singly[:2])
    for entry in singly[:2]:
        one.evict([entry])
    assert list(many.entries()) == list(one.entries())
    assert many.take_events() == one.take_events()
    assert many.dropped_events == one.dropped_events


def test_keys_that_stop_being_pending_are_reported_once():
    cache = PrefixCache(groups(None), event_capacity=100)
    keys = make_keys(range(8))
    cache.claim(keys, 0, 2, owner=1)
    cache.settle(keys.keys[:1])
    assert cache.take_settled() == keys.keys[:1]
    assert not cache.take_settled()
    cache.clear()
    assert cache.take_settled() == keys.keys[1:]
    assert cache.num_pending == 0


# reasons, memory, events


def test_miss_reasons_tell_why():
    cache = PrefixCache(groups(None), event_capacity=100)
    keys = make_keys(range(12))
    assert cache.match(keys, 0).miss_reason == "too_short"
    assert cache.match(make_keys([1, 2]), 2).miss_reason == "too_short"
    assert cache.match(keys, 2).miss_reason == "cold"
    (first, second, _third) = fill(cache, keys)
    assert cache.match(keys, 2).miss_reason == ""
    assert cache.match(make_keys([0, 1, 2, 3, 9, 9, 9, 9, 9]), 2).miss_reason == "partial"
    for other in ({"salt": b"s"}, {"adapter_digest": b"a"}, {"tenant": "t"}):
        domain = CacheDomain(model_revision="r", kv_dtype="float32", **other)
        assert cache.match(make_keys(range(12), domain=domain), 2) == Match(0, "other_salt_or_adapter", None)
    cache.evict([second])
    assert cache.match(keys, 2) == Match(1, "evicted", None)
    cache.evict([first])
    assert cache.match(keys, 2) == Match(0, "evicted", None)


def test_a_model_with_windows_only_has_the_same_reasons():
    cache = PrefixCache(groups(6), event_capacity=100)
    keys = make_keys(range(20))
    assert cache.match(keys, 4).miss_reason == "cold"
    entries = fill(cache, keys, end=4)
    cache.evict([entries[0]])
    assert cache.match(keys, 4) == Match(4, "", None)
    cache.evict([entries[3]])
    assert cache.match(keys, 4) == Match(3, "evicted", None)


def test_memory_of_evicted_keys_and_of_domains_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_cache, "GHOST_CAPACITY", 2)
    monkeypatch.setattr(prefix_cache, "DOMAIN_CAPACITY", 2)
    cache = PrefixCache(groups(None), event_capacity=100)
    prompts = [make_keys([n] * 4) for n in range(3)]
    for keys in prompts:
        (entry,) = fill(cache, keys)
        cache.evict([entry])
    assert [cache.match(keys, 1).miss_reason for keys in prompts] == ["cold", "evicted", "evicted"]
    salted = CacheDomain(model_revision="r", kv_dtype="float32", salt=b"s")
    reasons = [cache.match(make_keys([n] * 4, domain=salted), 1).miss_reason for n in range(3)]
    assert reasons == ["cold", "other_salt_or_adapter", "other_salt_or_adapter"]


def test_events_say_what_came_and_went_per_group_with_the_chain():
    cache = PrefixCache(groups(None, 4), event_capacity=100)
    keys = make_keys(range(8))
    entries = fill(cache, keys, num_groups=2)
    cache.evict([entries[3]])
    cache.clear()
    assert cache.take_events().events == [
        BlockStored(key=keys.keys[0], parent=keys.root, group=0, num_tokens=4),
        BlockStored(key=keys.keys[0], parent=keys.root, group=1, num_tokens=4),
        BlockStored(key=keys.keys[1], parent=keys.keys[0], group=0, num_tokens=4),
        BlockStored(key=keys.keys[1], parent=keys.keys[0], group=1, num_tokens=4),
        BlockRemoved(key=keys.keys[1], group=1),
        CacheCleared(),
    ]
    assert cache.take_events().events == []


def test_an_undrained_stream_loses_its_oldest_events_and_counts_them():
    cache = PrefixCache(groups(None), event_capacity=2)
    keys = make_keys(range(20))
    fill(cache, keys)
    assert cache.dropped_events == 3
    taken = cache.take_events()
    assert [event.key for event in taken.events] == keys.keys[3:]
    assert taken.num_dropped == cache.dropped_events == 3
    fill(cache, make_keys(range(100, 112)))
    assert cache.take_events().num_dropped == 1  # what was lost since it was last told
