"""Models and devices known by their sizes: KV bytes and weights against numbers worked out by hand or published."""

import msgspec
import pytest
from tests.pure.config.specs import GEMMA_270M, SMOLLM2

from paceline.contracts.kv import KV_FORMATS, KVFormat, plan_kv_groups
from paceline.planner import CARDS, DEVICES
from paceline.planner.ledger import kv_bytes_per_token

TWO = KVFormat(2)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3.1-8b", 2 * 8 * 128 * 32 * 2),  # 131,072
        ("llama-3.1-70b", 2 * 8 * 128 * 80 * 2),  # 327,680
        ("deepseek-v3", (512 + 64) * 61 * 2),  # 70,272
        ("gemma-3-27b", 2 * 16 * 128 * 10 * 2),  # 10 of 62 layers see everything
        ("gpt-oss-120b", 2 * 8 * 64 * 18 * 2),
        ("qwen3-next-80b-a3b", 2 * 2 * 256 * 12 * 2),  # 12 of 48 layers have a cache
        ("mixtral-8x7b", 131_072),
    ],
)
def test_kv_bytes_of_a_further_token(name, per_token):
    assert kv_bytes_per_token(CARDS[name].spec, TWO) == per_token


def test_the_three_that_everybody_quotes():
    quoted = {"llama-3.1-8b": 131_072, "llama-3.1-70b": 327_680, "deepseek-v3": 70_272}
    assert {name: kv_bytes_per_token(CARDS[name].spec, TWO) for name in quoted} == quoted


def test_kv_of_a_whole_sequence():
    gemma, oss, hybrid = (CARDS[n].spec for n in ("gemma-3-27b", "gpt-oss-120b", "qwen3-next-80b-a3b"))
    assert gemma.kv_bytes(8192, 2) == 2 * 16 * 128 * 2 * (10 * 8192 + 52 * 1024)
    assert oss.kv_bytes(8192, 2) == 2 * 8 * 64 * 2 * (18 * 8192 + 18 * 128)
    state = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert hybrid.kv_bytes(8192, 2) == 2 * 2 * 256 * 2 * 12 * 8192 + state
    # all layers counted as full attention would be far too much
    counted_full = 2 * 2 * 256 * 2 * 48 * 8192
    assert counted_full > 2.8 * hybrid.kv_bytes(8192, 2)


def test_eight_bit_kv_has_its_scales():
    assert kv_bytes_per_token(SMOLLM2, KV_FORMATS["int8"]) == 12_240
    assert kv_bytes_per_token(SMOLLM2, KV_FORMATS["float32"]) == 46_080
    assert KV_FORMATS["int8"].sequence_bytes(GEMMA_270M, 1) == 9_360


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama-3.1-8b", 8.03, 7.5),
        ("llama-3.1-70b", 70.6, 69.5),
        ("qwen2.5-7b", 7.62, 7.07),
        ("qwen3-8b", 8.19, 7.57),
        ("qwen3-30b-a3b", 30.5, 3.03),
        ("gemma-3-27b", 27.0, 27.0),
        ("mixtral-8x7b", 46.7, 12.7),
        ("deepseek-v3", 671.0, 36.6),
        ("gpt-oss-120b", 116.8, 5.1),
        ("qwen3-next-80b-a3b", 79.5, 3.5),
    ],
)
def test_weights_are_those_published(name, billions, active):
    spec = CARDS[name].spec
    assert spec.num_parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert spec.num_active_parameters / 1e9 == pytest.approx(active, rel=0.05)


def test_groups_of_latent_and_hybrid_models():
    (latent,) = plan_kv_groups(CARDS["deepseek-v3"].spec, 16, 2)
    assert (latent.kind, latent.bytes_per_block) == ("latent", 16 * 70_272)
    (cached,) = plan_kv_groups(CARDS["qwen3-next-80b-a3b"].spec, 16, 2)
    assert cached.layers == tuple(range(3, 48, 4))


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_says_where_its_numbers_are_from(name):
    card = DEVICES[name]
    assert card.source
    assert card.dense
    assert card.one_way
    assert card.spec.gflops > 1e5
    assert card.fp8_gflops is None or card.fp8_gflops == pytest.approx(2 * card.spec.gflops, rel=0.03)


def test_known_traps_of_public_tables():
    """The sparse rate of an L40S, both directions of NVLink, 8-bit floats on an A100, 28 GB on an A10."""
    assert DEVICES["l40s"].fp8_gflops == 733e3
    assert DEVICES["h100-sxm"].fast_link(8).gbps == 450
    assert DEVICES["a100-sxm"].fp8_gflops is None
    assert DEVICES["a100-sxm"].rate("fp8") == DEVICES["a100-sxm"].spec.gflops
    assert DEVICES["a10"].spec.memory_bytes == pytest.approx(24e9)
    ridge = DEVICES["h100-sxm"].spec.gflops / DEVICES["h100-sxm"].spec.memory_gbps
    assert ridge == pytest.approx(295, abs=1)


def test_cards_are_values():
    for card in CARDS.values():
        assert msgspec.json.decode(msgspec.json.encode(card.spec), type=type(card.spec)) == card.spec
