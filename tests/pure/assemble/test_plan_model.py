"""Sizes from the configurations of models that no engine builds: those of the cards, and refusals."""

import json

import msgspec
import pytest

from paceline import hub
from paceline.assemble.plan_model import describe_sizes, sizes_from_config
from paceline.errors import ModelError, UnsupportedError
from paceline.planner import CARDS

QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262_144,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 151_936,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163_840,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "v_head_dim": 128,
    "vocab_size": 129_280,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "vocab_size": 32_000,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("config", "name"),
    [(QWEN3_NEXT, "qwen3-next-80b-a3b"), (DEEPSEEK, "deepseek-v3"), (MIXTRAL, "mixtral-8x7b")],
)
def test_a_configuration_gives_the_cards_sizes(config, name):
    card = CARDS[name]
    spec, weights = sizes_from_config(config, name=name, where="config.json")
    same = {"revision": card.spec.revision, "qk_norm": card.spec.qk_norm}
    assert msgspec.structs.replace(spec, **same) == card.spec
    assert weights == card.weights


def test_windows_and_experts_under_their_other_names():
    config = {**MIXTRAL, "model_type": "gpt_oss", "sliding_window": 128, "experts_per_token": 4, "head_dim": 64}
    del config["num_experts_per_tok"]
    config["layer_types"] = ["sliding_attention", "full_attention"] * 16
    spec, _ = sizes_from_config(config, name="x", where="config.json")
    assert [layer.window for layer in spec.layers[:2]] == [128, None]
    assert spec.experts.num_active == 4


@pytest.mark.parametrize(
    ("changed", "dense"),
    [
        ({}, set()),
        ({"mlp_only_layers": [0, 5], "decoder_sparse_step": 1}, {0, 5}),
        ({"decoder_sparse_step": 2}, set(range(0, 32, 2))),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, {0, *range(1, 32, 2)}),
    ],
)
def test_layers_without_experts(changed, dense):
    spec, _ = sizes_from_config({**MIXTRAL, **changed}, name="x", where="config.json")
    assert {i for i, layer in enumerate(spec.layers) if not layer.routed} == dense


def test_a_window_without_a_list_of_layers():
    def windows(**changed):
        spec, _ = sizes_from_config({**MIXTRAL, "sliding_window": 512, **changed}, name="x", where="config.json")
        return {layer.window for layer in spec.layers}

    assert windows() == {512}
    assert windows(model_type="qwen3_moe", use_sliding_window=False) == {None}
    for family in ({"model_type": "qwen2_moe", "use_sliding_window": True}, {"model_type": "gpt_oss"}):
        with pytest.raises(UnsupportedError, match="which layers have a window"):
            windows(**family)


def test_a_quantised_checkpoint_of_a_family_that_is_built():
    spec, weights = sizes_from_config(
        {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4}}, name="x", where="config.json"
    )
    assert (spec.family, weights) == ("llama", "int4")


@pytest.mark.parametrize("quantised", [{"quant_method": "bitsandbytes"}, {"quant_method": "gptq", "bits": 3}])
def test_an_unknown_quantisation_is_refused(quantised):
    with pytest.raises(UnsupportedError, match="in a way that plans do not know"):
        sizes_from_config({**MIXTRAL, "quantization_config": quantised}, name="x", where="config.json")


@pytest.mark.parametrize(
    "changed",
    [
        {"layer_types": ["other"] * 32},
        {"layer_types": ["sliding_attention"] * 32},
        {"num_local_experts": None},
        {"hidden_size": "wide"},
        {"n_shared_experts": "two"},
        {"first_k_dense_replace": -1},
        {"moe_layer_freq": 1.5},
        {"decoder_sparse_step": [1]},
        {"mlp_only_layers": "0"},
        {"mlp_only_layers": [0.5]},
    ],
)
def test_unusable_values_are_refused(changed):
    with pytest.raises(ModelError):
        sizes_from_config({**MIXTRAL, **changed}, name="x", where="config.json")


def test_a_folder_is_read_and_an_unknown_architecture_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MIXTRAL))
    files = hub.resolve(str(tmp_path), tmp_path, download=False, weights=False)
    assert describe_sizes(files)[0].family == "mixtral"
    path.write_text(json.dumps({**MIXTRAL, "model_type": "mamba"}))
    with pytest.raises(UnsupportedError):
        describe_sizes(files)
