import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.kv import (
    CacheDomain,
    KVGroupSpec,
    KVLayout,
    KVStats,
    chain_key,
    chain_keys,
    plan_kv_groups,
    root_key,
)
from paceline.contracts.request import MediaSpan, TokenPrompt, TracePrompt, block_keys, prompt_keys
from paceline.contracts.specs import LayerSpec, ModelSpec
from paceline.errors import UnsupportedError

DOMAIN = CacheDomain(model_revision="r", kv_dtype="float32")


def group(block_size: int = 4, window: int | None = None) -> KVGroupSpec:
    kind = "full" if window is None else "sliding"
    return KVGroupSpec(kind=kind, layers=(0,), block_size=block_size, bytes_per_block=64, window=window)


def spec(layers: tuple[LayerSpec, ...]) -> ModelSpec:
    return ModelSpec(
        family="gemma3",
        name="m",
        revision="r",
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_heads=4,
        num_kv_heads=1,
        head_dim=8,
        layers=layers,
        max_model_len=64,
    )


def test_groups_of_a_mixed_model_have_equal_bytes_and_share_no_layer():
    layers = tuple(LayerSpec() if i % 6 == 5 else LayerSpec(attention="sliding", window=512) for i in range(18))
    groups = plan_kv_groups(spec(layers), block_size=16, dtype_bytes=2)
    assert [(g.kind, len(g.layers), g.window) for g in groups] == [("sliding", 3, 512)] * 5 + [("full", 3, None)]
    assert sorted(layer for g in groups for layer in g.layers) == list(range(18))
    assert {g.bytes_per_block for g in groups} == {3 * 16 * 2 * 1 * 8 * 2}


def test_a_model_of_one_kind_is_one_group():
    (only,) = plan_kv_groups(spec((LayerSpec(),) * 5), block_size=16, dtype_bytes=4)
    assert only.kind == "full"
    assert only.layers == (0, 1, 2, 3, 4)


def test_a_sliding_layer_without_a_window_is_refused():
    with pytest.raises(UnsupportedError, match="layer 1"):
        plan_kv_groups(spec((LayerSpec(), LayerSpec(attention="sliding"))), block_size=16, dtype_bytes=4)


@given(block_size=st.integers(1, 8), window=st.integers(1, 30), position=st.integers(0, 100))
def test_the_first_visible_block_holds_the_oldest_position_a_query_sees(block_size, window, position):
    visible = [p for p in range(position + 1) if position - p < window]
    assert group(block_size, window).first_visible_block(position) == visible[0] // block_size
    assert group(block_size).first_visible_block(position) == 0


@given(block_size=st.integers(1, 8), window=st.integers(1, 30), num_tokens=st.integers(1, 80), chunk=st.integers(1, 20))
def test_max_blocks_bounds_what_a_window_holds_at_any_chunking(block_size, window, num_tokens, chunk):
    g = group(block_size, window)
    bound = g.max_blocks(num_tokens, chunk)
    for computed in range(num_tokens):
        planned = min(num_tokens, computed + chunk)
        held = -(-planned // block_size) - g.first_visible_block(computed)
        assert held <= bound <= g.max_blocks(num_tokens + 1, chunk)
    assert group(block_size).max_blocks(num_tokens, chunk) == -(-num_tokens // block_size)


def test_a_layout_adds_its_groups_up():
    layout = KVLayout(groups=(group(), group(window=4)), num_blocks=10)
    assert layout.max_blocks(100, 4) == 25 + 3
    assert layout.total_bytes == 11 * 64
    assert layout.block_size == 4


def test_no_two_domains_share_a_root():
    fields = [
        {},
        {"salt": b"a"},
        {"salt": b"b"},
        {"adapter_digest": b"a"},
        {"adapter_digest": b"a", "salt": b"b"},
        {"adapter_digest": b"ab"},
        {"salt": b"ab"},
        {"tenant": "a"},
        {"tenant": "ab"},
        {"tenant": "a", "salt": b"b"},
    ]
    domains = [CacheDomain(model_revision=r, kv_dtype=d, **f) for r in ("r", "ra") for d in ("f", "g") for f in fields]
    assert len({root_key(domain) for domain in domains}) == len(domains)


@given(st.tuples(*[st.binary(max_size=3)] * 2), st.tuples(*[st.binary(max_size=3)] * 2))
def test_roots_are_equal_only_for_equal_domains(one, two):
    keys = [root_key(CacheDomain(model_revision="r", kv_dtype="f", adapter_digest=a, salt=s)) for a, s in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


def test_keys_of_many_blocks_are_those_of_one_after_the_other() -> None:
    blocks = [np.arange(at, at + 4, dtype="<i4").tobytes() for at in range(5)]
    parent, found = b"root", []
    for block in blocks:
        found.append(parent := chain_key(parent, block))
    assert chain_keys(b"root", blocks) == found
    assert chain_keys(b"root", []) == []


def test_a_key_is_128_bits_and_depends_on_parent_tokens_and_extras():
    root = root_key(DOMAIN)
    ids = np.array([1, 2, 3, 4], dtype=np.int32)
    key = chain_key(root, ids)
    assert len(key) == 16
    assert chain_key(root, ids.astype("<i4").tobytes()) == key
    assert chain_key(root, ids.astype(np.int64)) == key
    others = [
        chain_key(key, ids),
        chain_key(root, ids[::-1]),
        chain_key(root, ids, [b"x"]),
        chain_key(root, ids, [b""]),
    ]
    others += [chain_key(root, ids, [b"x", b"y"]), chain_key(root, ids, [b"xy"])]
    assert len({key, *others}) == 7


def test_only_full_blocks_have_keys_and_equal_prefixes_have_equal_ones():
    one = prompt_keys(TokenPrompt(ids=np.arange(11, dtype=np.int32)), DOMAIN, 4)
    two = prompt_keys(TokenPrompt(ids=np.array([0, 1, 2, 3, 4, 5, 6, 9, 8], dtype=np.int32)), DOMAIN, 4)
    assert len(one) == len(two) == 2
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert one == block_keys(np.arange(11, dtype=np.int32), (), DOMAIN, 4)


def test_media_is_part_of_every_block_it_touches_and_of_none_before():
    ids = np.zeros(16, dtype=np.int32)

    def keys(*spans: MediaSpan) -> list[bytes]:
        return block_keys(ids, spans, DOMAIN, 4)

    plain = keys()
    cat = keys(MediaSpan(start=6, length=4, digest=b"cat"))
    dog = keys(MediaSpan(start=6, length=4, digest=b"dog"))
    moved = keys(MediaSpan(start=5, length=4, digest=b"cat"))
    assert plain[0] == cat[0] == dog[0] == moved[0]
    for index in (1, 2, 3):
        assert len({plain[index], cat[index], dog[index], moved[index]}) == 4


def test_a_trace_prompt_has_no_keys_behind_its_last_hash():
    trace = TracePrompt(num_tokens=22, block_hashes=(5, 6), hash_block_size=8)
    assert len(prompt_keys(trace, DOMAIN, 4)) == 4
    assert len(prompt_keys(trace, DOMAIN, 16)) == 1
    longer = TracePrompt(num_tokens=40, block_hashes=(5, 6), hash_block_size=8)
    assert prompt_keys(longer, DOMAIN, 4) == prompt_keys(trace, DOMAIN, 4)


def test_trace_hashes_that_share_their_low_bits_stay_apart():
    one = TracePrompt(num_tokens=8, block_hashes=(7,), hash_block_size=8)
    two = TracePrompt(num_tokens=8, block_hashes=(7 + (1 << 40),), hash_block_size=8)
    assert np.array_equal(one.ids, two.ids)
    assert prompt_keys(one, DOMAIN, 4)[0] != prompt_keys(two, DOMAIN, 4)[0]


def test_a_last_hash_that_covers_less_than_its_block_gives_keys_only_to_the_prompt_s_end():
    trace = TracePrompt(num_tokens=13, block_hashes=(1, 2), hash_block_size=8)
    assert trace.num_keyed_tokens == 13
    assert len(prompt_keys(trace, DOMAIN, 4)) == 3


def test_rates_of_an_unused_cache_are_zero():
    stats = KVStats(
        total=4,
        free=3,
        cached=0,
        held=1,
        limbo=0,
        reserved=0,
        hit_tokens=0,
        query_tokens=0,
        evictions=0,
        miss_reasons={},
    )
    assert stats.hit_rate == 0.0
    assert stats.usage == 0.25
