"""Context parallelism in the prices: identity, a case by hand, balance, and what must grow or shrink."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.cost.steps import GPU, model

from paceline.contracts.specs import LatentSpec, LayerSpec, StateSpec
from paceline.cost import Degrees, Link, StepPrior, decode_shape, joined, prefill_shape
from paceline.cost.context import Moved, attention_ms, rank_pairs, ring_ms
from paceline.errors import UnsupportedError

LINK = Link(gbps=100.0, latency_us=10.0)
FAST = Link(gbps=1e9, latency_us=0.0)


def prior(cp: int, link: Link = LINK, **changes: object) -> StepPrior:
    """Some 8B: 32 heads, 8 of them with keys."""
    sizes = {
        "hidden_size": 4096, "intermediate_size": 14336, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128,
        "layers": (LayerSpec(),) * 32, "vocab_size": 128256, "max_model_len": 1 << 20, **changes,
    }  # fmt: skip
    return StepPrior(model(**sizes), GPU, degrees=Degrees(cp=cp), link=link)


def test_a_ring_by_hand() -> None:
    """4 ranks, 8 ms of work, 2 ms a part; hops of 1 ms are hidden, hops of 3 ms are waited for."""
    assert ring_ms(8.0, 4, 1.0) == pytest.approx(8.0)
    assert ring_ms(8.0, 4, 3.0) == pytest.approx(2.0 + 3 * 3.0)


def test_the_shorter_way_round_is_taken_by_hand() -> None:
    """100 GB/s is 1e8 bytes a ms, each message 0.01 ms."""
    work, ranks = 4.0, 4  # parts of 1 ms
    keys = Moved(keys=8e8, queries=64e8, outputs=64e8)  # hops of 2.01 ms, or of 16.01 ms and 48.01 ms back
    assert attention_ms(work, ranks, LINK, keys) == pytest.approx(1 + 3 * 2.01)
    queries = Moved(keys=64e8, queries=4e6, outputs=4e6)  # hops of 0.02 ms are hidden; 0.04 ms back
    assert attention_ms(work, ranks, LINK, queries) == pytest.approx(4.0 + 0.04)
    assert attention_ms(work, 1, LINK, keys) == work


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 16))
def test_pairs_of_ranks_are_those_of_the_prompt(num_tokens: int, num_cached: int, ranks: int) -> None:
    whole = prefill_shape(num_tokens, num_cached).attention_pairs
    for zigzag in (True, False):
        pairs = rank_pairs(num_tokens, num_cached, ranks, zigzag=zigzag)
        assert len(pairs) == ranks
        assert sum(pairs) == whole


def test_zig_zag_is_even_and_in_order_is_not() -> None:
    """8 positions over 2 ranks: runs of 2 see 3, 7, 11, 15 pairs; in order 10 and 26."""
    assert rank_pairs(8, 0, 2) == [3 + 15, 7 + 11]
    assert rank_pairs(8, 0, 2, zigzag=False) == [10, 26]
    even, order = rank_pairs(4096, 0, 4), rank_pairs(4096, 0, 4, zigzag=False)
    assert max(even) == min(even)
    assert max(order) / (sum(order) / 4) == pytest.approx(2 - 1 / 4, rel=1e-3)


def test_one_rank_is_no_division() -> None:
    one, plain = prior(1), StepPrior(prior(1).spec, GPU)
    for shape in (decode_shape(7, 3000), prefill_shape(700, 90), joined(decode_shape(3, 50), prefill_shape(5000))):
        assert one.parts(shape) == plain.parts(shape)
        assert one.parts(shape)["context"] == 0.0


def test_a_long_prompt_is_faster_with_every_rank_and_never_by_more_than_that() -> None:
    shape = prefill_shape(131_072)
    times = [prior(cp).step_ms(shape) for cp in (1, 2, 4, 8)]
    for fewer, more in pairwise(times):
        assert fewer / 2 < more < fewer
    assert prior(8, FAST).parts(shape)["context"] == pytest.approx(0.0, abs=1e-6)
    assert prior(8, Link(gbps=1.0)).step_ms(shape) > times[0]  # over a link too slow


def test_attention_over_four_ranks_by_hand() -> None:
    """One layer of a prompt of 32,768: a quarter of the work on each; a link slow enough to be waited for."""
    slow = Link(gbps=1.0, latency_us=0.0)
    shape = prefill_shape(32_768)
    one_layer = {"layers": (LayerSpec(),)}
    parts = prior(4, slow, **one_layer).parts(shape)
    hop = 32_768 / 4 * 2 * 8 * 128 * 2 / 1e6  # 33.6 ms: K and V of a quarter, two bytes each, 1e6 bytes a ms
    assert parts["attention"] + parts["context"] == pytest.approx(parts["attention"] / 4 + 3 * hop)
    assert parts["attention"] == pytest.approx(prior(1, **one_layer).parts(shape)["attention"] / 4, rel=0.05)


def test_decode_reads_a_part_of_the_cache_on_each_rank_and_pays_for_its_queries() -> None:
    shape = decode_shape(16, 100_000)
    one, four = (prior(cp).parts(shape) for cp in (1, 4))
    assert four["attention"] == pytest.approx(one["attention"] / 4)
    assert 32 * 0.01 < four["context"] < 32 * 4 * 0.02  # a message round, and one back, in each layer
    short = decode_shape(1, 10)
    assert prior(4).step_ms(short) > prior(1).step_ms(short)  # nothing to read, and messages all the same


@pytest.mark.parametrize("cp", [2, 8])
def test_a_larger_step_is_never_cheaper(cp: int) -> None:
    each = prior(cp)
    for shape in (decode_shape(1, 1), decode_shape(30, 4000), prefill_shape(300), prefill_shape(9000, 70_000)):
        base = each.step_ms(shape) * (1 - 1e-12)
        assert each.step_ms(joined(shape, decode_shape(1, 100))) >= base
        assert each.step_ms(joined(shape, prefill_shape(50))) >= base
        longer = {"context_tokens": shape.context_tokens + 500, "attention_pairs": shape.attention_pairs + 500}
        assert each.step_ms(msgspec.structs.replace(shape, **longer)) >= base


def test_latent_and_sliding_layers_move_what_they_read() -> None:
    latent = LatentSpec(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128)
    layers = (LayerSpec(attention="latent"),) * 4
    shape = prefill_shape(65_536)
    slow = Link(gbps=1.0)
    heavy = prior(4, slow).parts(shape)["context"] / 32
    light = prior(4, slow, layers=layers, latent=latent).parts(shape)["context"] / 4
    assert light < heavy  # 576 numbers a token instead of 2,048
    sliding = prior(4, slow, layers=(LayerSpec(attention="sliding", window=1024),) * 32)
    far = prefill_shape(1024, 60_000)
    hop = 2048 / 4 * 2 * 8 * 128 * 2 / 1e6  # of the step's own keys and a window before them
    assert sliding.parts(far)["context"] == pytest.approx(32 * 3 * hop, rel=0.02)
    assert sliding.parts(far)["context"] < 0.6 * prior(4, slow).parts(far)["context"]  # which moves queries


def test_what_is_not_priced_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="position by position"):
        prior(2, layers=(LayerSpec(attention="state"), LayerSpec()), state=StateSpec(num_bytes=8, num_parameters=8))
    with pytest.raises(UnsupportedError, match="together with expert"):
        StepPrior(prior(1).spec, GPU, degrees=Degrees(cp=2, ep=2), link=LINK)
