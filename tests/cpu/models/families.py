"""Tiny random models of every family, beside their transformers twins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers

from paceline.contracts.specs import ModelSpec
from paceline.hub.config_json import spec_from_config
from paceline.runtime.layers import BuildContext
from paceline.runtime.models import Model, build_model

SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = 24
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama-biases": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral-window": (transformers.MistralConfig, {"sliding_window": WINDOW}),
    "qwen2": (transformers.Qwen2Config, {"use_sliding_window": False}),
    "qwen3": (transformers.Qwen3Config, {"use_sliding_window": False}),
    "gemma2": (
        transformers.Gemma2Config,
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
            },
        },
    ),
}


def hf_model(name: str, **changes: Any) -> Any:
    """A transformers model with random weights, biases and norms included."""
    kind, extra = FAMILIES[name]
    torch.manual_seed(sum(map(ord, name)))
    config = kind(**{**SIZES, **extra, **changes})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases would start at one and zero
                parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in parameter_name else 0.3))
    return model


def spec_of(model: Any) -> ModelSpec:
    return spec_from_config(model.config.to_dict(), name="tiny", where="tiny config")


def stream_of(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.state_dict().items()


def ours(model: Any, **context: Any) -> Model:
    """The same weights in our model."""
    built = build_model(spec_of(model), BuildContext(**context))
    built.load_weights(stream_of(model))
    return built
