"""Weights of a GGUF file: names, layouts and offsets turned into those of a Hugging Face checkpoint.

What the GGUF conversion changed and is undone here:

- llama rotates pairs (2i, 2i + 1) instead of halves, so the rows of q and k were interleaved per head;
- Gemma norms hold 1 + w, the checkpoint w.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from paceline.contracts.specs import ModelSpec
from paceline.errors import ModelError, UnsupportedError
from paceline.hub.ggml_types import GGML_TYPES
from paceline.hub.gguf_file import DOWNLOAD_AGAIN, GGUFFile, TensorInfo
from paceline.runtime.layers.linear import StoredBlocks
from paceline.runtime.loader.dequantize import dequantize

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The norm before the MLP has another name in the families that also have one after attention.
_PLAIN = {"ffn_norm": "post_attention_layernorm"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP_NAME = re.compile(r"(\w+)\.(weight|bias)")
_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}
_IN_THE_SPEC = ("rope_freqs.weight",)  # read by the hub, as rotary scaling


def hf_name(name: str, family: str) -> str:
    """Hugging Face name of a GGUF tensor. Raises UnsupportedError for a tensor the family does not have."""
    if match := _BLOCK_NAME.fullmatch(name):
        parts = _BLOCK | (_SANDWICH if family.startswith("gemma") else _PLAIN)
        if (part := parts.get(match[2])) is not None:
            return f"model.layers.{match[1]}.{part}.{match[3]}"
    elif (match := _TOP_NAME.fullmatch(name)) and match[1] in _TOP:
        return f"{_TOP[match[1]]}.{match[2]}"
    raise UnsupportedError(
        f"GGUF tensor {name!r} has no place in a {family} model",
        expected="the tensors of a dense text model",
        fix="choose another file",
    )


def gguf_weights(
    path: Path,
    spec: ModelSpec,
    *,
    dtype: torch.dtype | None,
    keep_blocks: Callable[[int], bool] | None = None,
) -> Iterator[tuple[str, torch.Tensor | StoredBlocks]]:
    """Yield (name, tensor) in the order of the file; shapes are [out, in] for matrices, [n] for norms and biases.
    Matrices of the types that `keep_blocks` takes stay in blocks."""
    file = GGUFFile(path)
    file.check_types()
    for info in file.tensors.values():
        if info.name in _IN_THE_SPEC:
            continue
        name = hf_name(info.name, spec.family)
        if spec.family.startswith("gemma") and name.endswith("norm.weight"):
            # Subtract in float32: near 1, bfloat16 has only 8 bits left.
            tensor = dequantize(file.raw(info), info.type.name, info.shape, torch.float32) - 1.0
            yield name, tensor if dtype is None else tensor.to(dtype)
            continue
        raw = file.raw(info)
        if spec.family == "llama" and (heads := _rotated_heads(name, spec)):
            raw = _halves(raw, info, heads)
        if keep_blocks is not None and len(info.shape) == 2 and keep_blocks(_NUMBERS[info.type.name]):
            yield name, StoredBlocks(raw, _NUMBERS[info.type.name], (info.shape[0], info.shape[1]))
            continue
        yield name, dequantize(raw, info.type.name, info.shape, dtype)


def _rotated_heads(name: str, spec: ModelSpec) -> int:
    if ".q_proj." in name:
        return spec.num_heads
    return spec.num_kv_heads if ".k_proj." in name else 0


def _halves(raw: np.ndarray, info: TensorInfo, num_heads: int) -> np.ndarray:
    """Rows (pair, half) of each head back to (half, pair). A row is whole blocks, so the stored bytes can be moved."""
    num_rows = info.shape[0]
    if num_rows % (2 * num_heads):
        raise ModelError(
            f"GGUF tensor {info.name!r} does not divide into heads",
            seen=f"{num_rows} rows",
            expected=f"a multiple of {2 * num_heads}",
            fix=DOWNLOAD_AGAIN,
        )
    pairs = raw.reshape(num_heads, num_rows // num_heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)
