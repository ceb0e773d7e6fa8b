"""Tiny random models of each family behind the torch executor."""

from __future__ import annotations

from typing import Any

import torch

from paceline.contracts.kv import KVLayout, kv_format, plan_kv_groups
from paceline.contracts.specs import LayerSpec, ModelSpec, RopeSpec
from paceline.runtime.executor import TorchExecutor, build_executor
from paceline.runtime.kernels.dispatch import Numerics
from paceline.runtime.loader.dummy import dummy_weights
from paceline.runtime.worker import Worker
from paceline.runtime.worst_plan import StepLimits

VOCAB = 48
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "max_model_len": 64,
    "revision": "tiny",
}
_SLIDING = LayerSpec(attention="sliding", window=6, rope=RopeSpec(theta=1000.0))
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"layers": (LayerSpec(), LayerSpec())},
    "qwen3": {"layers": (LayerSpec(), LayerSpec()), "qk_norm": True},
    "gemma3": {
        "layers": (_SLIDING, LayerSpec(), _SLIDING),
        "qk_norm": True,
        "activation": "gelu_tanh",
        "embedding_scale": 32**0.5,
    },
    "qwen2": {"layers": (LayerSpec(), LayerSpec()), "attention_bias": True, "tie_word_embeddings": True},
    "gemma2": {
        "layers": (_SLIDING, LayerSpec()),
        "activation": "gelu_tanh",
        "embedding_scale": 32**0.5,
        "attention_softcap": 2.0,
        "final_softcap": 4.0,
    },
    "mistral": {"family": "llama", "layers": (_SLIDING, _SLIDING)},  # nothing but windows
}
FAMILIES = tuple(_FAMILIES)


def tiny_spec(family: str, **changes: Any) -> ModelSpec:
    return ModelSpec(**{"family": family, "name": f"tiny {family}", **_SHAPE, **_FAMILIES[family], **changes})


def tiny_layout(spec: ModelSpec, num_blocks: int, block_size: int, dtype: str = "float32") -> KVLayout:
    held = kv_format(dtype, spec)
    groups = plan_kv_groups(spec, block_size, held.element_bytes, held.scale_bytes)
    return KVLayout(groups=groups, num_blocks=num_blocks, dtype=dtype)


def tiny_executor(
    family: str,
    num_blocks: int = 96,
    max_rows: int = 8,
    max_tokens: int = 64,
    *,
    block_size: int = 4,
    numerics: Numerics = "reference",
    dtype: str = "float32",
    kv_dtype: str | None = None,
    seed: int = 0,
    max_model_len: int = 64,
) -> TorchExecutor:
    """Weights are scaled so that the text hangs on what attention reads, not on the newest token alone."""
    spec = tiny_spec(family)
    layout = tiny_layout(spec, num_blocks, block_size, kv_dtype or dtype)
    torch_dtype = getattr(torch, dtype)
    weights = dict(dummy_weights(spec, seed=seed, dtype=torch_dtype))
    for name, weight in weights.items():
        if name.endswith("embed_tokens.weight") and not spec.tie_word_embeddings:
            weight *= 0.3 / spec.embedding_scale
        elif name.endswith(("o_proj.weight", "q_proj.weight", "lm_head.weight")):
            weight *= 3.0
    worker = Worker.load(spec, weights.items(), dtype=torch_dtype, numerics=numerics)
    worker.allocate_kv(layout)
    limits = StepLimits(max_rows=max_rows, max_tokens=max_tokens, max_model_len=max_model_len, chunk_tokens=max_tokens)
    return build_executor(worker, limits)
