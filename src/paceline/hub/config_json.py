"""`ModelSpec` from the config.json of a Hugging Face folder.

Only what changes arithmetic, memory or limits is read; other keys are ignored. What would change arithmetic and is not
built (quantised checkpoints, partial rotation, bidirectional attention) is refused by name. Missing keys have the
default that transformers gives them, because published files leave out what equals it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from paceline.contracts.specs import LayerSpec, ModelSpec, RopeSpec
from paceline.errors import UnsupportedError
from paceline.hub.fields import Fields
from paceline.hub.rope import longest_context, rope_spec

_GEMMA = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "eos_token_id": 1,
    "bos_token_id": 2,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_QWEN = {"num_key_value_heads": 32, "max_position_embeddings": 32_768, "sliding_window": 4096, "max_window_layers": 28}
_LLAMA = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 32_000}

# model_type -> (family, defaults)
MODEL_TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_LLAMA, "max_position_embeddings": 2048}),
    "mistral": (
        "llama",
        {**_LLAMA, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    ),
    "qwen2": ("qwen2", {**_QWEN, "vocab_size": 151_936}),
    "qwen3": ("qwen3", {**_QWEN, "vocab_size": 151_936, "head_dim": 128}),
    "gemma2": (
        "gemma2",
        {
            **_GEMMA,
            "vocab_size": 256_000,
            "max_position_embeddings": 8192,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
            "sliding_window_pattern": 2,
        },
    ),
    "gemma3_text": (
        "gemma3",
        {
            **_GEMMA,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
        },
    ),
}

ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh", "gelu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def spec_from_config(
    config: Mapping[str, Any],
    *,
    name: str,
    where: str,
    revision: str = "",
    generation: Mapping[str, Any] | None = None,
    weight_dtype: str = "",
    weight_bytes: int = 0,
) -> ModelSpec:
    """Read a parsed config.json (and generation_config.json, for stop tokens).

    Raises UnsupportedError for an architecture or a feature that is not built, ModelError for unusable values.
    """
    _refuse_quantised(config, where)
    outer = config
    if config.get("model_type") == "gemma3" and isinstance(config.get("text_config"), Mapping):
        # The text part of a model that also sees pictures; the outer file may hold the token ids.
        inner = config["text_config"]
        outer_keys = ("eos_token_id", "bos_token_id", "tie_word_embeddings", "dtype", "torch_dtype")
        config = {**{k: config[k] for k in outer_keys if k in config}, **inner, "model_type": "gemma3_text"}
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise UnsupportedError(
            f"{where} is of an architecture that paceline does not build",
            seen=f"model_type {model_type!r}",
            expected=f"one of {', '.join(MODEL_TYPES)}, gemma3",
            fix="choose a model of one of these",
        )
    family, defaults = MODEL_TYPES[model_type]
    get = Fields(config, where, defaults)
    if get.flag("use_bidirectional_attention"):
        raise UnsupportedError(
            f"{where} attends in both directions", seen="use_bidirectional_attention", expected="a causal model"
        )

    hidden_size, num_heads = get.integer("hidden_size"), get.integer("num_attention_heads")
    num_kv_heads = num_heads if get.get("num_key_value_heads") is None else get.integer("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise get.wrong("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads} attention heads")
    max_position = get.integer("max_position_embeddings")
    layers = _layers(get, family, model_type, max_position)
    gemma = family.startswith("gemma")
    activation = get.get("hidden_activation") or get.get("hidden_act") or "silu"
    if activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"{where} uses an unknown activation", seen=activation, expected=f"one of {', '.join(ACTIVATIONS)}"
        )
    eos = Fields(generation or {}, where).token_ids("eos_token_id") + get.token_ids("eos_token_id")
    eos += Fields(outer, where).token_ids("eos_token_id")
    full = next((layer.rope for layer in layers if layer.attention == "full"), layers[0].rope)
    return ModelSpec(
        family=family,
        name=name,
        revision=revision,
        vocab_size=get.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=get.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden_size // num_heads if get.get("head_dim") is None else get.integer("head_dim"),
        layers=layers,
        max_model_len=max_position if family == "gemma3" else longest_context(full, max_position),
        rms_norm_eps=get.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=get.flag("tie_word_embeddings"),
        activation=ACTIVATIONS[activation],
        attention_bias=True if family == "qwen2" else get.flag("attention_bias"),
        attention_output_bias=False if family == "qwen2" else get.flag("attention_bias"),
        mlp_bias=get.flag("mlp_bias") if family == "llama" else False,
        qk_norm=family in ("qwen3", "gemma3"),
        attention_scale=get.number("query_pre_attn_scalar") ** -0.5 if gemma else None,
        attention_softcap=get.optional_number("attn_logit_softcapping") if gemma else None,
        final_softcap=get.optional_number("final_logit_softcapping") if gemma else None,
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        weight_dtype=weight_dtype or str(get.get("dtype") or get.get("torch_dtype") or "float32"),
        weight_bytes=weight_bytes,
        bos_token_id=get.token_id("bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(eos)),
    )


def _layers(get: Fields, family: str, model_type: str, max_position: int) -> tuple[LayerSpec, ...]:
    num_layers = get.integer("num_hidden_layers")
    window = get.optional_integer("sliding_window")
    ropes = _ropes(get, family, max_position)
    if model_type == "mistral":
        sliding = [window is not None] * num_layers
    elif family == "llama":
        sliding = [False] * num_layers
    elif (types := get.get("layer_types")) is not None:
        known = {"full_attention": False, "sliding_attention": True}
        if not isinstance(types, list) or len(types) != num_layers or not all(isinstance(t, str) for t in types):
            raise get.wrong("layer_types", types, f"a list of {num_layers} names")
        if unknown := [t for t in types if t not in known]:
            raise UnsupportedError(
                f"{get.where} has layers of an unknown type", seen=unknown[0], expected=" or ".join(known)
            )
        sliding = [known[t] for t in types]
    elif family.startswith("gemma"):
        pattern = get.integer("sliding_window_pattern")
        sliding = [(index + 1) % pattern != 0 for index in range(num_layers)]
    else:
        first = int(get.get("max_window_layers") or 0)
        on = get.flag("use_sliding_window") and window is not None
        sliding = [on and index >= first for index in range(num_layers)]
    if any(sliding) and window is None:
        raise get.wrong("sliding_window", None, "the window of its sliding layers, in tokens")
    return tuple(
        LayerSpec(
            attention="sliding" if slides else "full",
            window=window if slides else None,
            rope=ropes["sliding_attention" if slides else "full_attention"],
        )
        for slides in sliding
    )


def _ropes(get: Fields, family: str, max_position: int) -> dict[str, RopeSpec]:
    """Rotary settings by layer type."""
    theta = get.number("rope_theta", 10_000.0)
    params = get.get("rope_scaling") or get.get("rope_parameters") or {}
    if not isinstance(params, Mapping):
        raise get.wrong("rope_parameters", params, "an object")
    # Keys that some configurations keep outside.
    outside = {key: get.get(key) for key in ("original_max_position_embeddings", "partial_rotary_factor")}
    params = {**params, **{key: value for key, value in outside.items() if value is not None}}
    nested = {
        kind: params[kind] for kind in ("full_attention", "sliding_attention") if isinstance(params.get(kind), Mapping)
    }
    local_theta = get.number("rope_local_base_freq", 10_000.0) if family == "gemma3" else theta
    thetas = {"full_attention": theta, "sliding_attention": local_theta}
    ropes = {}
    for kind, base in thetas.items():
        own = nested.get(kind, {}) if nested else params
        if kind == "sliding_attention" and family == "gemma3" and not nested:
            own = {}  # Gemma 3 stretches only its full layers
        ropes[kind] = rope_spec(own, theta=base, max_position=max_position, where=get.where)
    return ropes


def _refuse_quantised(config: Mapping[str, Any], where: str) -> None:
    quantised = config.get("quantization_config")
    if isinstance(quantised, Mapping):
        raise UnsupportedError(
            f"{where} holds quantised weights that paceline does not read yet",
            seen=f"quantization_config {quantised.get('quant_method', '')}".strip(),
            expected="float32, float16 or bfloat16 weights",
            fix="use the original weights, or a .gguf file",
        )
