"""Sizes of models that no engine here builds yet, from their config.json: enough to plan for them.

Mixtures of experts, latent attention and layers with a recurrent state, under the keys of the Hugging Face
configurations; quantised checkpoints of families that are built, whose format is taken from `quantization_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline import hub
from paceline.contracts.specs import ExpertsSpec, LatentSpec, LayerSpec, ModelSpec, StateSpec
from paceline.errors import UnsupportedError
from paceline.hub.config_json import spec_from_config
from paceline.hub.fields import Fields
from paceline.hub.files import read_json

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "qwen3_next")
FORMATS = {"fp8": "fp8", "awq": "int4", "gptq": "int4", "mxfp4": "mxfp4"}


def describe_sizes(files: hub.ModelFiles) -> tuple[ModelSpec, str]:
    """The model and the format its weights are in. Raises UnsupportedError for what is neither built nor known here."""
    if not files.path.is_dir():
        return hub.describe(files), "bf16"
    config = read_json(files.path / "config.json")
    if config.get("model_type") not in FAMILIES and "quantization_config" not in config:
        return hub.describe(files), "bf16"
    return sizes_from_config(config, name=files.name, where=str(files.path / "config.json"))


def sizes_from_config(config: Mapping[str, Any], *, name: str, where: str) -> tuple[ModelSpec, str]:
    """A parsed config.json as sizes and weight format. Raises UnsupportedError, ModelError as `hub.describe` does."""
    weights = _format(config, where)
    if config.get("model_type") not in FAMILIES:
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        return spec_from_config(plain, name=name, where=where), weights
    get = Fields(config, where, {"num_key_value_heads": config.get("num_attention_heads")})
    latent = _latent(get)
    heads = get.integer("num_attention_heads")
    head_dim = latent.nope_dim + latent.rope_dim if latent else get.optional_integer("head_dim")
    layers = _layers(get, latent is not None)
    spec = ModelSpec(
        family=str(config["model_type"]),
        name=name,
        revision="sizes",
        vocab_size=get.integer("vocab_size"),
        hidden_size=get.integer("hidden_size"),
        intermediate_size=get.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=get.integer("num_key_value_heads"),
        head_dim=head_dim or get.integer("hidden_size") // heads,
        layers=layers,
        max_model_len=get.integer("max_position_embeddings"),
        tie_word_embeddings=get.flag("tie_word_embeddings"),
        attention_bias=get.flag("attention_bias"),
        attention_output_bias=get.flag("attention_bias"),
        experts=_experts(get),
        latent=latent,
        state=_state(get) if any(layer.attention == "state" for layer in layers) else None,
    )
    return spec, weights


def _format(config: Mapping[str, Any], where: str) -> str:
    quantised = config.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return "bf16"
    method = str(quantised.get("quant_method", ""))
    if method not in FORMATS or (method in ("awq", "gptq") and quantised.get("bits", 4) != 4):
        raise UnsupportedError(
            f"{where} is quantised in a way that plans do not know",
            seen=f"quant_method {method!r}",
            expected=f"one of {', '.join(FORMATS)}, 4 bits where it says bits",
            fix="plan for the original weights, with --weights for the nearest format",
        )
    return FORMATS[method]


def _latent(get: Fields) -> LatentSpec | None:
    if get.get("kv_lora_rank") is None:
        return None
    return LatentSpec(
        kv_rank=get.integer("kv_lora_rank"),
        rope_dim=get.integer("qk_rope_head_dim"),
        nope_dim=get.integer("qk_nope_head_dim"),
        value_dim=get.integer("v_head_dim"),
        query_rank=get.optional_integer("q_lora_rank"),
    )


def _experts(get: Fields) -> ExpertsSpec:
    """Their number has three names, their width two, and what all tokens share comes as a width or as a count."""
    numbers = ("num_experts", "n_routed_experts", "num_local_experts")
    number = next((key for key in numbers if get.get(key) is not None), numbers[0])
    width = get.integer("moe_intermediate_size" if get.get("moe_intermediate_size") else "intermediate_size")
    shared = get.optional_integer("shared_expert_intermediate_size")
    if shared is None:
        shared = width * _count(get, "n_shared_experts")
    active = "num_experts_per_tok" if get.get("num_experts_per_tok") is not None else "experts_per_token"
    return ExpertsSpec(
        num_experts=get.integer(number),
        num_active=get.integer(active),
        intermediate_size=width,
        shared_intermediate_size=shared,
    )


def _layers(get: Fields, latent: bool) -> tuple[LayerSpec, ...]:
    count = get.integer("num_hidden_layers")
    kinds = get.get("layer_types")
    if kinds is None and (interval := get.optional_integer("full_attention_interval")) is not None:
        kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]
    if kinds is None:
        kinds = ["sliding_attention" if _all_slide(get) else "full_attention"] * count
    known = ("full_attention", "sliding_attention", "linear_attention")
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in known for kind in kinds):
        raise get.wrong("layer_types", kinds, f"{count} of {', '.join(known)}")
    routed = _routed(get, count)
    window = get.integer("sliding_window") if "sliding_attention" in kinds else None
    layers = []
    for index, kind in enumerate(kinds):
        slides = kind == "sliding_attention"
        attention: Any = "sliding" if slides else "state" if kind == "linear_attention" else "full"
        layers.append(
            LayerSpec(
                attention="latent" if latent else attention,
                window=window if slides else None,
                routed=routed[index],
            )
        )
    return tuple(layers)


def _all_slide(get: Fields) -> bool:
    """Without a list of kinds, whether a window is every layer's. Mixtral's is; Qwen's needs a flag of its own, and
    then holds for some layers."""
    if get.get("sliding_window") is None:
        return False
    family = str(get.get("model_type"))
    if family == "mixtral":
        return True
    if family.startswith("qwen") and not get.flag("use_sliding_window"):
        return False
    raise UnsupportedError(
        f"{get.where} does not say which layers have a window",
        seen=f"sliding_window {get.get('sliding_window')} of the family {family}",
        expected="layer_types, with a kind for each layer",
        fix="add layer_types to the file",
    )


def _routed(get: Fields, count: int) -> tuple[bool, ...]:
    """Which layers have experts. DeepSeek: from `first_k_dense_replace` on, each `moe_layer_freq`-th, counted from 0;
    Qwen: each `decoder_sparse_step`-th, counted from 1, but those of `mlp_only_layers`. Others have them everywhere."""
    dense, every = _count(get, "first_k_dense_replace"), get.optional_integer("moe_layer_freq") or 1
    step, plain = get.optional_integer("decoder_sparse_step") or 1, get.get("mlp_only_layers") or []
    if not isinstance(plain, list) or not all(type(index) is int for index in plain):
        raise get.wrong("mlp_only_layers", plain, "a list of layers' numbers")
    return tuple(i >= dense and i % every == 0 and (i + 1) % step == 0 and i not in plain for i in range(count))


def _count(get: Fields, key: str) -> int:
    """0 or more; left out: 0."""
    value = get.get(key)
    return 0 if value is None or (type(value) is int and value == 0) else get.integer(key)


def _state(get: Fields) -> StateSpec:
    """Of a gated delta layer: a matrix for each value head in 4 bytes, the tail of a convolution in 2."""
    key = get.integer("linear_num_key_heads") * get.integer("linear_key_head_dim")
    heads, width = get.integer("linear_num_value_heads"), get.integer("linear_value_head_dim")
    value, hidden = heads * width, get.integer("hidden_size")
    kernel = get.integer("linear_conv_kernel_dim")
    convolved = 2 * key + value
    projections = hidden * (2 * key + 2 * value + 2 * heads) + value * hidden
    return StateSpec(
        num_bytes=heads * get.integer("linear_key_head_dim") * width * 4 + (kernel - 1) * convolved * 2,
        num_parameters=projections + kernel * convolved,
    )
