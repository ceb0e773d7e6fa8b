"""config.json files as they are published, read here and by transformers: every number must agree."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from paceline.hub import describe
from paceline.hub.files import inspect

BASE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "factor": 8.0}
NESTED = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 7e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama, defaults": {"model_type": "llama"},
    "llama 3": {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama, old linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama, dynamic": {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "llama, own head size": {"model_type": "llama", "head_dim": 32, "num_key_value_heads": 1},
    "llama, new style": {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 123.0}},
    "mistral, defaults": {"model_type": "mistral", "num_key_value_heads": 2},
    "mistral, no window": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None},
    "qwen2, defaults": {"model_type": "qwen2", "num_key_value_heads": 2},
    "qwen2, windows": {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "max_window_layers": 3,
    },
    "qwen2, yarn": {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "max_position_embeddings": 400,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
    },
    "qwen3, defaults": {"model_type": "qwen3", "num_key_value_heads": 2},
    "gemma2, all defaults": {"model_type": "gemma2"},
    "gemma2": {"model_type": "gemma2", **BASE, "query_pre_attn_scalar": 144, "attn_logit_softcapping": None},
    "gemma3, all defaults": {"model_type": "gemma3_text"},
    "gemma3, old style": {
        "model_type": "gemma3_text",
        "rope_theta": 2e6,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    },
    "gemma3, nested": {"model_type": "gemma3_text", "rope_parameters": NESTED},
    "gemma3 with pictures": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 128,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    },
}
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@pytest.mark.parametrize("name", CONFIGS)
def test_spec_and_transformers_agree(tmp_path: Path, name: str) -> None:
    given = CONFIGS[name] if CONFIGS[name]["model_type"].startswith("gemma") else BASE | CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(given))
    spec = describe(inspect(tmp_path, "m", weights=False))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config = getattr(config, "text_config", config)

    same = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "num_layers": config.num_hidden_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "bos_token_id": config.bos_token_id,
        "activation": ACTIVATIONS[getattr(config, "hidden_activation", None) or config.hidden_act],
        "attention_softcap": getattr(config, "attn_logit_softcapping", None),
        "final_softcap": getattr(config, "final_logit_softcapping", None),
    }
    assert {key: getattr(spec, key) for key in same} == same
    eos = config.eos_token_id
    assert set(spec.eos_token_ids) == ({eos} if isinstance(eos, int) else set(eos or ()))
    if hasattr(config, "query_pre_attn_scalar"):
        assert spec.scale == pytest.approx(config.query_pre_attn_scalar**-0.5)
    types = getattr(config, "layer_types", None)
    if types is None:
        types = ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"] * spec.num_layers
    assert [f"{layer.attention}_attention" for layer in spec.layers] == types
    for layer, kind in zip(spec.layers, types, strict=True):
        assert layer.window == (config.sliding_window if kind == "sliding_attention" else None)
        rope = config.rope_parameters.get(kind, config.rope_parameters)
        assert (layer.rope.theta, layer.rope.kind) == (rope["rope_theta"], rope["rope_type"])
        assert layer.rope.factor == rope.get("factor", 1.0)
        if layer.rope.kind in ("llama3", "yarn"):
            assert layer.rope.original_max_position == rope["original_max_position_embeddings"]
