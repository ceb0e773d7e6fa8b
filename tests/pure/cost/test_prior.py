from __future__ import annotations

from random import Random

import msgspec
import pytest
from tests.pure.cost.steps import CPU, GPU, model, random_shape

from paceline.contracts.specs import ExpertsSpec, LatentSpec, LayerSpec
from paceline.cost import Degrees, Link, StepPrior, decode_shape, joined, prefill_shape
from paceline.cost.utilisation import PRODUCTS, product_share, share
from paceline.errors import ConfigError

LINK = Link(gbps=450.0, latency_us=28.0)


def large(**changes: object) -> StepPrior:
    """Llama-3.1-70B on an H100, or on several."""
    spec = model(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        layers=(LayerSpec(),) * 80,
        max_model_len=131072,
        tie_word_embeddings=False,
    )
    options: dict[str, object] = {"dtype_bytes": 2, "kv_dtype_bytes": 2, "link": LINK, **changes}
    return StepPrior(spec, GPU, **options)  # type: ignore[arg-type]


def mixture(**changes: object) -> StepPrior:
    experts = ExpertsSpec(num_experts=64, num_active=4, intermediate_size=1024)
    spec = model(layers=(LayerSpec(routed=True),) * 16, experts=experts, hidden_size=2048, num_heads=16, num_kv_heads=8)
    return StepPrior(spec, GPU, **{"link": LINK, **changes})  # type: ignore[arg-type]


def test_decoding_one_row_takes_at_least_the_reading_of_all_weights() -> None:
    prior = large()
    read_ms = 70e9 * 2 / 3.35e12 * 1e3
    assert read_ms < prior.step_ms(decode_shape(1, 100)) < 1.6 * read_ms


def test_a_long_chunk_takes_at_least_its_arithmetic() -> None:
    prior = large()
    compute_ms = 2 * 68e9 * 4096 / 989e12 * 1e3
    assert compute_ms < prior.step_ms(prefill_shape(4096)) < 2.5 * compute_ms


@pytest.mark.parametrize("prior", [large(), large(degrees=Degrees(tp=8)), mixture(), StepPrior(model(), CPU)])
def test_a_larger_step_is_never_cheaper(prior: StepPrior) -> None:
    random = Random(0)
    last = 0.0
    for tokens in (1, 7, 8, 9, 100, 128, 129, 200, 256, 257, 300, 511, 513, 700, 2048, 4096, 5000):
        ms = prior.step_ms(prefill_shape(tokens))
        assert ms >= last
        last = ms
    for _ in range(30):
        shape = random_shape(random)
        base = prior.step_ms(shape) * (1 - 1e-12)
        assert prior.step_ms(joined(shape, decode_shape(1, 100))) >= base
        assert prior.step_ms(joined(shape, prefill_shape(50))) >= base
        assert prior.step_ms(msgspec.structs.replace(shape, num_prompt_logits=9)) >= base
        longer = {"context_tokens": shape.context_tokens + 500, "attention_pairs": shape.attention_pairs + 500}
        assert prior.step_ms(msgspec.structs.replace(shape, **longer)) >= base


def test_parts_add_up_and_a_step_without_rows_has_none() -> None:
    prior, shape = large(degrees=Degrees(tp=4, pp=2)), decode_shape(16, 1000)
    parts = prior.parts(shape)
    assert sum(parts.values()) == pytest.approx(prior.step_ms(shape))
    assert min(parts.values()) >= 0.0
    assert min(parts["tensor_parallel"], parts["pipeline"]) > 0
    assert parts["experts"] == 0
    empty = msgspec.structs.replace(shape, num_tokens=0, num_rows=0, num_sampled=0, context_tokens=0)
    assert prior.step_ms(empty) == prior.interval_ms(empty) == 0.0


def test_dividing_matrices_helps_decoding_less_than_it_divides() -> None:
    one, eight = large(), large(degrees=Degrees(tp=8))
    shape = decode_shape(8, 1000)
    gain = one.step_ms(shape) / eight.step_ms(shape)
    assert 2.0 < gain < 7.0
    slow = large(degrees=Degrees(tp=8), link=Link(gbps=10.0, latency_us=60.0))
    assert slow.parts(shape)["tensor_parallel"] > 80 * 2 * 0.06
    assert slow.step_ms(shape) > eight.step_ms(shape)


def test_stages_change_how_often_a_step_starts_and_not_how_long_it_takes() -> None:
    one, four = large(), large(degrees=Degrees(pp=4))
    shape = decode_shape(8, 1000)
    assert one.interval_ms(shape) == pytest.approx(one.step_ms(shape))
    assert four.step_ms(shape) == pytest.approx(one.step_ms(shape), rel=0.05)
    assert one.step_ms(shape) / 4 < four.interval_ms(shape) < one.step_ms(shape) / 3  # the last one has the head too


def test_few_positions_read_few_experts() -> None:
    prior = mixture()
    few, many = (prior.parts(decode_shape(rows, 10))["experts"] for rows in (1, 64))
    assert many > 8 * few  # 4 experts of 64, against nearly all of them
    assert prior.parts(decode_shape(256, 10))["experts"] < 2 * many


def test_spreading_experts_divides_their_reading_and_adds_messages() -> None:
    one, four = mixture(), mixture(degrees=Degrees(ep=4))
    shape = decode_shape(256, 100)
    assert four.parts(shape)["experts"] < one.parts(shape)["experts"]
    uneven = mixture(degrees=Degrees(ep=4), expert_imbalance=1.5)
    assert uneven.step_ms(shape) > four.step_ms(shape)
    slow = mixture(degrees=Degrees(ep=4), link=Link(gbps=1.0, latency_us=100.0))
    assert slow.parts(shape)["experts"] - four.parts(shape)["experts"] > 16 * 2 * 0.07


def test_a_window_bounds_what_a_layer_reads() -> None:
    full = StepPrior(model(), CPU)
    sliding = StepPrior(model(layers=(LayerSpec(attention="sliding", window=128),) * 30), CPU)
    short, long = decode_shape(4, 100), decode_shape(4, 1900)
    assert sliding.step_ms(short) == pytest.approx(full.step_ms(short))
    assert sliding.parts(long)["attention"] < 0.1 * full.parts(long)["attention"]


def test_a_latent_cache_is_read_whole_by_every_rank() -> None:
    latent = LatentSpec(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128, query_rank=1536)
    spec = model(
        hidden_size=7168, num_heads=128, num_kv_heads=128, layers=(LayerSpec(attention="latent"),) * 4, latent=latent
    )
    shape = decode_shape(32, 8000)
    one, eight = (StepPrior(spec, GPU, degrees=Degrees(tp=tp), link=LINK).parts(shape)["attention"] for tp in (1, 8))
    read_ms = 4 * 32 * 8000 * 576 * 2 / 3.35e12 * 1e3
    assert eight > read_ms
    assert one <= 8 * eight


def test_an_estimate_of_a_prior_says_that_nothing_was_timed() -> None:
    found = large().estimate(decode_shape(1, 10))
    assert found.tier == "first principles"
    assert found.lo < found.value < found.hi
    assert "989000 GFLOP/s" in found.why or "9.89e+05" in found.why


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="no link"):
        StepPrior(model(), GPU, degrees=Degrees(tp=2))
    with pytest.raises(ConfigError, match="more stages than layers"):
        StepPrior(model(), GPU, degrees=Degrees(pp=31), link=LINK)
    with pytest.raises(ConfigError, match="below 1"):
        Degrees(tp=0)
    with pytest.raises(ConfigError, match="no rates"):
        StepPrior(model(), msgspec.structs.replace(GPU, gflops=0.0))


def test_a_share_is_interpolated_and_never_above_one() -> None:
    assert share(((1, 0.2), (4, 0.4)), 2) == pytest.approx(0.3)
    assert share(((1, 0.2), (4, 0.4)), 0.1) == 0.2
    assert share(((1, 0.2), (4, 0.4)), 99) == 0.4
    whole, small = PRODUCTS["cuda"]
    for tokens in (1, 100, 256, 300, 1 << 20):
        for weights in (1.0, 30e6, 1e9):
            assert 0.0 < product_share("cuda", tokens, weights) <= 1.0
    assert product_share("cuda", 256, 1e9) == pytest.approx(share(whole, 256))
    assert product_share("cuda", 256, 1.0) == pytest.approx(share(small, 256))
