"""A rank's share of a model: sizes by hand, sums over ranks, and what cannot be divided."""

import pytest
from tests.pure.config.specs import GEMMA_270M, LLAMA_8B

from paceline.cost.shards import FORMATS, check_divides, rank_share, stage_layers
from paceline.errors import UnsupportedError
from paceline.planner.cards import DEEPSEEK_V3, GPT_OSS_120B, LLAMA_70B, MIXTRAL_8X7B, QWEN3_NEXT_80B


def counts(share):
    return {name: number for name, number, _ in share.parts}


@pytest.mark.parametrize("spec", [LLAMA_8B, GEMMA_270M, MIXTRAL_8X7B, DEEPSEEK_V3, GPT_OSS_120B, QWEN3_NEXT_80B])
def test_undivided_it_is_the_whole_model(spec):
    share = rank_share(spec)
    assert sum(counts(share).values()) == spec.num_parameters
    assert share.weight_bytes == 2 * spec.num_parameters
    assert share.spec == spec


def test_eight_ranks_of_a_70b():
    share = rank_share(LLAMA_70B, tp=8)
    layer = 8192 * 128 * (2 * 8 + 2 * 1) + 3 * 8192 * 28672 // 8
    assert counts(share)["attention"] + counts(share)["mlp"] == 80 * layer
    assert counts(share)["embedding and head"] == 2 * 128256 // 8 * 8192
    assert counts(share)["norms and routers"] == (2 * 80 + 1) * 8192  # not divided
    assert (share.spec.num_heads, share.spec.num_kv_heads) == (8, 1)


def test_fewer_kv_heads_than_ranks_are_copied():
    assert rank_share(LLAMA_70B, tp=16).spec.num_kv_heads == 1
    whole = 2 * 8192 * 128 * 8 * 80  # K and V projections
    copied = 16 * 2 * 8192 * 128 * 1 * 80
    others = counts(rank_share(LLAMA_70B))["attention"] - whole
    assert 16 * counts(rank_share(LLAMA_70B, tp=16))["attention"] == others + copied


def test_stages_add_up_and_the_first_has_the_rest():
    shares = [rank_share(LLAMA_8B, pp=3, stage=stage) for stage in range(3)]
    assert [len(s.spec.layers) for s in shares] == [11, 11, 10]
    assert sum(s.weight_bytes for s in shares) == rank_share(LLAMA_8B).weight_bytes
    assert [n for stage in range(3) for n in stage_layers(32, 3, stage)] == list(range(32))


def test_tied_tables_stand_at_both_ends_of_a_pipeline():
    shares = [rank_share(GEMMA_270M, pp=2, stage=stage) for stage in range(2)]
    table = GEMMA_270M.vocab_size * GEMMA_270M.hidden_size
    assert [counts(s)["embedding and head"] for s in shares] == [table, table]


def test_a_latent_model_divides_heads_and_not_what_it_compresses_with():
    whole, rank = rank_share(DEEPSEEK_V3), rank_share(DEEPSEEK_V3, tp=8)
    fixed = 61 * 7168 * (1536 + 576)  # q and kv compression
    assert 8 * (counts(rank)["attention"] - fixed) == counts(whole)["attention"] - fixed
    assert rank.spec.kv_bytes_per_token_per_layer(2) == whole.spec.kv_bytes_per_token_per_layer(2) == 576 * 2


def test_experts_are_divided_whole_or_by_width():
    experts = counts(rank_share(DEEPSEEK_V3))["experts"]
    shared = 58 * 3 * 7168 * 2048
    wide, whole = rank_share(DEEPSEEK_V3, tp=8), rank_share(DEEPSEEK_V3, ep=8)
    assert counts(wide)["experts"] == experts // 8
    assert counts(whole)["experts"] == (experts - shared) // 8 + shared  # every group has the shared part
    assert whole.spec.experts.num_experts == 32
    assert wide.spec.experts.intermediate_size == 256


def test_a_state_is_divided_by_heads():
    assert rank_share(QWEN3_NEXT_80B, tp=2).spec.state_bytes == QWEN3_NEXT_80B.state_bytes // 2


@pytest.mark.parametrize(
    ("spec", "degrees", "words"),
    [
        (LLAMA_8B, {"tp": 3}, "32 heads do not divide"),
        (LLAMA_8B, {"pp": 33}, "32 layers are fewer"),
        (LLAMA_8B, {"ep": 2}, "no experts"),
        (MIXTRAL_8X7B, {"ep": 16}, "8 experts do not divide"),
    ],
)
def test_what_cannot_be_divided_says_why(spec, degrees, words):
    with pytest.raises(UnsupportedError, match=words):
        check_divides(spec, **{"tp": 1, "pp": 1, "ep": 1, **degrees})


def test_formats_by_hand():
    expected = {"bf16": 2, "fp8": 1.000244, "int8": 1.000488, "int4": 0.519531, "nvfp4": 0.5625, "mxfp4": 0.53125}
    assert {name: round(f.bytes_per_weight, 6) for name, f in FORMATS.items()} == expected


def test_tables_norms_and_routers_stay_16_bit_in_every_format():
    share = rank_share(MIXTRAL_8X7B, weights="int4")
    plain = counts(share)["embedding and head"] + counts(share)["norms and routers"]
    matrices = counts(share)["attention"] + counts(share)["experts"]
    assert share.weight_bytes == round(2 * plain + FORMATS["int4"].bytes_per_weight * matrices)
    experts_only = rank_share(GPT_OSS_120B, weights="mxfp4")
    assert {n: b for n, _, b in experts_only.parts}["attention"] == 2 * counts(experts_only)["attention"]
