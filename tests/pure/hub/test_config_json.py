"""Published configurations, shortened to what matters, and the specs they must give."""

import copy
from typing import Any

import pytest

from paceline.contracts.specs import ModelSpec, RopeSpec
from paceline.errors import ModelError, PacelineError, UnsupportedError
from paceline.hub.config_json import spec_from_config

LLAMA_31 = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "hidden_act": "silu",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008],
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN_25 = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 4,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "max_window_layers": 2,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
}
GEMMA_3_4B = {
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


def spec(config: dict[str, Any], **options: Any) -> ModelSpec:
    return spec_from_config(config, name="m", where="config.json", **options)


def with_(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config) | changes
    return {key: value for key, value in changed.items() if value != "absent"}


def test_llama_3_1() -> None:
    found = spec(LLAMA_31, generation={"eos_token_id": [128001, 128009]})
    assert (found.family, found.head_dim, found.num_kv_heads, found.max_model_len) == ("llama", 128, 8, 131072)
    assert found.layers[0].rope == RopeSpec(
        theta=500000.0,
        kind="llama3",
        factor=8.0,
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    assert found.eos_token_ids == (128001, 128009, 128008)
    assert (found.bos_token_id, found.weight_dtype) == (128000, "bfloat16")
    assert (found.attention_bias, found.qk_norm, found.tie_word_embeddings) == (False, False, False)
    assert {layer.attention for layer in found.layers} == {"full"}


def test_mistral_slides_everywhere_when_it_has_a_window() -> None:
    mistral = with_(LLAMA_31, model_type="mistral", rope_scaling=None)
    old = spec(with_(mistral, sliding_window=4096))
    assert old.family == "llama"
    assert {(layer.attention, layer.window) for layer in old.layers} == {("sliding", 4096)}
    assert {layer.attention for layer in spec(with_(mistral, sliding_window=None)).layers} == {"full"}
    assert spec(with_(mistral, sliding_window="absent")).layers[0].window == 4096


def test_qwen2_has_biases_on_q_k_v_alone_and_slides_only_when_told() -> None:
    found = spec(QWEN_25)
    assert (found.attention_bias, found.attention_output_bias, found.mlp_bias) == (True, False, False)
    assert (found.head_dim, found.tie_word_embeddings) == (64, True)
    assert {layer.attention for layer in found.layers} == {"full"}
    sliding = spec(with_(QWEN_25, use_sliding_window=True))
    assert [layer.window for layer in sliding.layers] == [None, None, 32768, 32768]


def test_qwen3_has_head_norms_and_wide_heads() -> None:
    found = spec(with_(QWEN_25, model_type="qwen3", num_attention_heads=16))
    assert (found.qk_norm, found.head_dim, found.attention_bias) == (True, 128, False)


def test_layer_types_win_over_the_older_keys() -> None:
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    found = spec(with_(QWEN_25, model_type="qwen3", layer_types=types, sliding_window=77))
    assert [layer.window for layer in found.layers] == [77, None, None, 77]


def test_gemma_2_defaults() -> None:
    found = spec({"model_type": "gemma2", "num_hidden_layers": 4})
    assert [layer.attention for layer in found.layers] == ["sliding", "full"] * 2
    assert (found.attention_softcap, found.final_softcap, found.attention_scale) == (50.0, 30.0, 1 / 16)
    assert found.embedding_scale == pytest.approx(48.0)
    assert (found.activation, found.tie_word_embeddings, found.qk_norm) == ("gelu_tanh", True, False)
    assert {layer.rope.theta for layer in found.layers} == {10_000.0}


def test_gemma_3_that_sees_pictures_gives_its_text_part() -> None:
    found = spec(GEMMA_3_4B)
    assert (found.family, found.num_heads, found.num_kv_heads, found.vocab_size) == ("gemma3", 8, 4, 262208)
    assert [i for i, layer in enumerate(found.layers) if layer.attention == "full"] == [5, 11, 17, 23, 29]
    assert found.layers[5].rope == RopeSpec(theta=1_000_000.0, kind="linear", factor=8.0)
    assert found.layers[0].rope == RopeSpec(theta=10_000.0)
    assert found.layers[0].window == 1024
    assert (found.max_model_len, found.attention_softcap, found.qk_norm) == (131072, None, True)
    assert (found.eos_token_ids, found.weight_dtype) == ((1, 106), "bfloat16")


def test_rope_parameters_may_be_one_dictionary_per_layer_type() -> None:
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    }
    found = spec(config)
    assert found.layers[5].rope == RopeSpec(theta=5e5, kind="linear", factor=8.0)
    assert found.layers[0].rope == RopeSpec(theta=2e4)


@pytest.mark.parametrize(
    ("changes", "rope", "max_model_len"),
    [
        ({"rope_scaling": None}, RopeSpec(theta=1e6), 32768),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, RopeSpec(theta=1e6, kind="linear", factor=4.0), 32768),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            RopeSpec(theta=1e6, kind="dynamic", factor=2.0, original_max_position=32768),
            65536,
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            RopeSpec(theta=1e6, kind="yarn", factor=4.0, original_max_position=32768),
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_theta": "absent",
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 3e5,
                    "original_max_position_embeddings": 32768,
                    "beta_fast": 24,
                    "mscale": 0.7,
                    "mscale_all_dim": 0.5,
                    "truncate": False,
                },
            },
            RopeSpec(
                theta=3e5,
                kind="yarn",
                factor=4.0,
                original_max_position=32768,
                beta_fast=24.0,
                mscale=0.7,
                mscale_all_dim=0.5,
                truncate=False,
            ),
            131072,
        ),
    ],
)
def test_every_spelling_of_rotary_scaling(changes: dict[str, Any], rope: RopeSpec, max_model_len: int) -> None:
    found = spec(with_(QWEN_25, **changes))
    assert found.layers[0].rope == rope
    assert found.max_model_len == max_model_len


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"model_type": "phi3"}, UnsupportedError, "one of llama, mistral, qwen2, qwen3, gemma2"),
        ({}, UnsupportedError, "model_type None"),
        (with_(LLAMA_31, quantization_config={"quant_method": "awq"}), UnsupportedError, "awq"),
        (with_(LLAMA_31, rope_scaling={"rope_type": "longrope", "factor": 4}), UnsupportedError, "longrope"),
        (with_(LLAMA_31, partial_rotary_factor=0.5), UnsupportedError, "0.5"),
        (with_(LLAMA_31, rope_scaling={"type": "linear"}), ModelError, "factor"),
        (with_(LLAMA_31, hidden_act="relu2"), UnsupportedError, "relu2"),
        (with_(LLAMA_31, hidden_size="wide"), ModelError, "hidden_size"),
        (with_(LLAMA_31, num_hidden_layers=0), ModelError, "num_hidden_layers"),
        (with_(LLAMA_31, num_key_value_heads=5), ModelError, "num_key_value_heads"),
        (with_(LLAMA_31, intermediate_size="absent"), ModelError, "intermediate_size"),
        (with_(LLAMA_31, rms_norm_eps=True), ModelError, "rms_norm_eps"),
        (with_(LLAMA_31, eos_token_id="</s>"), ModelError, "eos_token_id"),
        (with_(LLAMA_31, tie_word_embeddings="yes"), ModelError, "tie_word_embeddings"),
        (with_(LLAMA_31, rope_scaling=[1]), ModelError, "rope_parameters"),
        (with_(QWEN_25, layer_types=["full_attention"]), ModelError, "layer_types"),
        (with_(QWEN_25, layer_types=["chunked_attention"] * 4), UnsupportedError, "chunked_attention"),
        (with_(QWEN_25, layer_types=["sliding_attention"] * 4, sliding_window=None), ModelError, "sliding_window"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, UnsupportedError, "both directions"),
    ],
)
def test_what_is_not_built_or_not_usable_is_named(
    config: dict[str, Any], error: type[PacelineError], words: str
) -> None:
    with pytest.raises(error) as caught:
        spec(config)
    assert words in str(caught.value)
