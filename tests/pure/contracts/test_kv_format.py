"""What a KV cache of each type takes: blocks, sequences and the profile's arithmetic count the same bytes."""

import msgspec
import pytest
from tests.pure.config.specs import GEMMA_270M, LAPTOP, SMOLLM2

from paceline.config import load_config, resolve_knobs
from paceline.config.roofline import Roofline
from paceline.contracts.kv import KV_FORMATS, kv_format, plan_kv_groups
from paceline.contracts.specs import LatentSpec
from paceline.errors import UnsupportedError


@pytest.mark.parametrize("dtype", KV_FORMATS)
@pytest.mark.parametrize("spec", [SMOLLM2, GEMMA_270M], ids=lambda s: s.name)
def test_blocks_hold_what_a_sequence_is_said_to_need(spec, dtype):
    """512 tokens: no window has let go of any, and they are whole blocks."""
    held = kv_format(dtype, spec)
    groups = plan_kv_groups(spec, 16, held.element_bytes, held.scale_bytes)
    in_blocks = sum(32 * group.bytes_per_block for group in groups)
    roof = Roofline(spec, LAPTOP, 4, held.element_bytes, held.scale_bytes)
    assert held.sequence_bytes(spec, 512) == in_blocks == roof.kv_bytes(512)


def test_bytes_of_a_token():
    by_hand = {"float32": 46_080, "bfloat16": 23_040, "float16": 23_040, "int8": 30 * 2 * 3 * (64 + 4)}
    assert {dtype: kv_format(dtype, SMOLLM2).sequence_bytes(SMOLLM2, 1) for dtype in KV_FORMATS} == by_hand


def test_a_window_keeps_its_scales_alone():
    int8 = kv_format("int8", GEMMA_270M)
    assert int8.sequence_bytes(GEMMA_270M, 4096) == 2 * (256 + 4) * (15 * 512 + 3 * 4096)


def test_no_scales_for_a_cache_that_has_no_heads_or_odd_ones():
    latent = msgspec.structs.replace(SMOLLM2, latent=LatentSpec(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128))
    for spec, seen in ((latent, "compressed"), (msgspec.structs.replace(SMOLLM2, head_dim=66), "head_dim 66")):
        with pytest.raises(UnsupportedError, match=seen):
            kv_format("int8", spec)
        kv_format("bfloat16", spec)


def test_a_type_that_no_cache_is_kept_in_is_refused_with_those_there_are():
    with pytest.raises(UnsupportedError, match=r"fp8.*float32, bfloat16, float16, int8"):
        kv_format("fp8", SMOLLM2)


def test_a_profile_plans_with_what_is_held():
    config = load_config(None, {"profile": "long-context"})
    plain = resolve_knobs(config, SMOLLM2, LAPTOP, dtype_bytes=4)
    small = resolve_knobs(config, SMOLLM2, LAPTOP, dtype_bytes=4, kv=KV_FORMATS["int8"])
    assert small.max_num_seqs >= plain.max_num_seqs
