"""Small GGUF files byte by byte, so that tests can also make ones that no writer would."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from paceline.hub.ggml_types import GGML_TYPES

TYPE_IDS = {ggml_type.name: number for number, ggml_type in GGML_TYPES.items()}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """Type tag and value. int -> u32, float -> f32, list -> an array of what its first item is."""
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str() | bytes():
            return struct.pack("<I", 8) + string(item)
        case list():
            body = [value(one) for one in item]
            return struct.pack("<I", 9) + body[0][:4] + struct.pack("<Q", len(item)) + b"".join(b[4:] for b in body)
    raise TypeError(type(item))


def gguf_bytes(
    metadata: dict[str, Any],
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """`tensors`: name -> (type name or number, shape rows first, data)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        data += b"\0" * (-len(data) % alignment)
        number = TYPE_IDS[kind] if isinstance(kind, str) else kind
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, len(data))
        data += raw
    return head + b"\0" * (-len(head) % alignment) + data


def tensor(rng: np.random.Generator, *shape: int) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", shape, rng.standard_normal(shape, dtype=np.float32).tobytes()


def model_bytes(arch: str = "llama", *, tensors: dict[str, Any] | None = None, **changes: Any) -> bytes:
    """A tiny model's file: vocabulary 8, hidden 8, 2 layers, 4 heads of 2.

    `changes` keys are without the prefix and with __ for dots; None removes a key.
    `tensors` adds tensors, or removes them (None).
    """
    rng = np.random.default_rng(0)
    metadata: dict[str, Any] = {
        "general.architecture": arch,
        "general.file_type": 0,
        f"{arch}.context_length": 128,
        f"{arch}.embedding_length": 8,
        f"{arch}.block_count": 2,
        f"{arch}.feed_forward_length": 16,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10_000.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a", "b", "ab", "<|im_end|>", "é"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 3, 1],
    }
    for key, item in changes.items():
        full = key.replace("__", ".")
        full = full if full.startswith(("general.", "tokenizer.", "split.")) else f"{arch}.{full}"
        if item is None:
            metadata.pop(full)
        else:
            metadata[full] = item
    blocks: dict[str, Any] = {"token_embd.weight": tensor(rng, 8, 8), "output_norm.weight": tensor(rng, 8)}
    for index in range(2):
        shapes = {
            "attn_norm": (8,),
            "attn_q": (8, 8),
            "attn_k": (4, 8),
            "attn_v": (4, 8),
            "attn_output": (8, 8),
            "ffn_norm": (8,),
            "ffn_gate": (16, 8),
            "ffn_up": (16, 8),
            "ffn_down": (8, 16),
        }
        blocks |= {f"blk.{index}.{part}.weight": tensor(rng, *shape) for part, shape in shapes.items()}
    blocks |= tensors or {}
    return gguf_bytes(metadata, {name: one for name, one in blocks.items() if one is not None})
