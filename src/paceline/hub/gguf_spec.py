"""`ModelSpec` from the metadata and tensor table of a GGUF file.

What metadata leaves out follows llama.cpp, which the files are made for: the sliding pattern and local theta of Gemma,
the attention scale of the 27B Gemmas, llama3 rotary scaling (kept only as a tensor). Biases, tied embeddings and head
norms are read off the tensor table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.contracts.specs import LayerSpec, ModelSpec, RopeSpec
from paceline.errors import UnsupportedError
from paceline.hub.fields import Fields
from paceline.hub.ggml_types import FILE_TYPES
from paceline.hub.gguf_file import GGUFFile
from paceline.hub.rope import longest_context, rope_from_divisors, rope_of_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
# Gemma models of this many layers are the 27B ones, which scale scores by (hidden / heads) instead of head_dim.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_SLIDING_PATTERN = {"gemma2": 2, "gemma3": 6}  # every n-th layer is a full one
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
_CONTROL_TOKEN = 3


def spec_from_gguf(file: GGUFFile, *, name: str, revision: str = "") -> ModelSpec:
    """Raises UnsupportedError for what is not built (architecture, feature, tensor type), ModelError for bad values."""
    arch = file.metadata.text("general.architecture", "")
    if arch not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.path} is of an architecture that paceline does not build",
            seen=f"general.architecture {arch!r}",
            expected=f"one of {', '.join(ARCHITECTURES)}",
            fix="choose a model of one of these",
        )
    file.check_types()
    get = Fields(file.metadata, str(file.path))
    tensors = file.tensors
    if num_experts := file.metadata.integer(f"{arch}.expert_count"):
        raise UnsupportedError(
            f"{file.path} is a mixture of experts",
            seen=f"{num_experts} experts",
            expected="a dense model",
        )
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise get.wrong("token_embd.weight", embedding and list(embedding.shape), "a tensor [vocab_size, hidden_size]")
    vocab_size, hidden_size = embedding.shape
    num_layers = get.integer(f"{arch}.block_count")
    num_heads = _same_everywhere(get, f"{arch}.attention.head_count")
    num_kv_heads = _same_everywhere(get, f"{arch}.attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise get.wrong(f"{arch}.attention.head_count_kv", num_kv_heads, f"a divisor of {num_heads} attention heads")
    head_dim = get.integer(f"{arch}.attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (seen := get.integer(f"{arch}.{key}", head_dim)) != head_dim:
            raise UnsupportedError(
                f"{file.path} has heads of several widths", seen=f"{arch}.{key} {seen}", expected=str(head_dim)
            )
    max_position = get.integer(f"{arch}.context_length")
    file.metadata.text(f"{arch}.rope.scaling.type")
    rope = rope_of_gguf(get, arch, theta=1_000_000.0 if arch == "gemma3" else 10_000.0, max_position=max_position)
    if (divisors := tensors.get("rope_freqs.weight")) is not None and divisors.type.name == "F32":
        rope = rope_from_divisors(rope, file.raw(divisors).view("<f4"), str(file.path))
    gemma = arch.startswith("gemma")
    return ModelSpec(
        family=arch,
        name=name,
        revision=revision,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_same_everywhere(get, f"{arch}.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        layers=_layers(get, arch, num_layers, rope),
        max_model_len=max_position if arch == "gemma3" else longest_context(rope, max_position),
        rms_norm_eps=float(str(np.float32(get.number(f"{arch}.attention.layer_norm_rms_epsilon")))),
        tie_word_embeddings="output.weight" not in tensors,
        activation="gelu_tanh" if gemma else "silu",
        attention_bias="blk.0.attn_q.bias" in tensors,
        attention_output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        attention_scale=_attention_scale(get, arch, num_layers, hidden_size / num_heads, head_dim) if gemma else None,
        attention_softcap=get.number(f"{arch}.attn_logit_softcapping", 50.0) if arch == "gemma2" else None,
        final_softcap=get.number(f"{arch}.final_logit_softcapping", 30.0) if arch == "gemma2" else None,
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        weight_dtype=f"gguf:{_file_type(file)}",
        weight_bytes=sum(info.num_bytes for info in tensors.values()),
        bos_token_id=_token(file.metadata.get("tokenizer.ggml.bos_token_id")),
        eos_token_ids=_eos_token_ids(file),
    )


def _layers(get: Fields, arch: str, num_layers: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    full = LayerSpec(rope=rope)
    if arch not in _SLIDING_PATTERN:
        return (full,) * num_layers
    pattern = get.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        slides = [bool(flag) for flag in pattern]
    else:
        every = get.integer(f"{arch}.attention.sliding_window_pattern", _SLIDING_PATTERN[arch])
        slides = [(index + 1) % every != 0 for index in range(num_layers)]
    if len(slides) != num_layers:
        raise get.wrong(f"{arch}.attention.sliding_window_pattern", len(slides), f"{num_layers} entries")
    local = RopeSpec(theta=get.number(f"{arch}.rope.freq_base_swa", 10_000.0 if arch == "gemma3" else rope.theta))
    sliding = LayerSpec(
        attention="sliding",
        window=get.integer(f"{arch}.attention.sliding_window", 4096 if arch == "gemma2" else None),
        rope=local if arch == "gemma3" else rope,
    )
    return tuple(sliding if slide else full for slide in slides)


def _attention_scale(get: Fields, arch: str, num_layers: int, width: float, head_dim: int) -> float:
    if (given := get.optional_number(f"{arch}.attention.scale")) is not None:
        return given
    return float((width if num_layers == _GEMMA_27B_LAYERS[arch] else head_dim) ** -0.5)


def _same_everywhere(get: Fields, key: str, default: int | None = None) -> int:
    """A size that GGUF may give per layer; only one size for all layers is built."""
    value = get.get(key)
    if isinstance(value, np.ndarray):
        if value.size == 0 or (value != value[0]).any():
            raise UnsupportedError(
                f"{get.where} has layers of several sizes", seen=f"{key} {value.tolist()[:8]}", expected="one size"
            )
        if value.dtype.kind not in "iu" or value[0] < 1:
            raise get.wrong(key, value.tolist()[:8], "positive integers")
        return int(value[0])
    return get.integer(key, default)


def _file_type(file: GGUFFile) -> str:
    """Name of the mix; when the file does not say, the type that most weights have."""
    if (known := FILE_TYPES.get(file.metadata.integer("general.file_type", -1) or 0)) is not None:
        return known
    weights: dict[str, int] = {}
    for info in file.tensors.values():
        weights[info.type.name] = weights.get(info.type.name, 0) + info.num_bytes
    return max(weights, key=lambda name: weights[name])


def _eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    """Ends of text, of turn and of message; end-of-turn markers by name too, since older files give no key for them."""
    get = file.metadata.get
    ids = [_token(get(f"tokenizer.ggml.{kind}_token_id")) for kind in ("eos", "eot", "eom")]
    types = get("tokenizer.ggml.token_type")
    if ids[1] is None and "tokenizer.ggml.tokens" in file.metadata and isinstance(types, np.ndarray):
        for marker in _END_OF_TURN:
            index = file.metadata.index_of("tokenizer.ggml.tokens", marker)
            if index is not None and index < len(types) and types[index] == _CONTROL_TOKEN:
                ids.append(index)
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _token(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
