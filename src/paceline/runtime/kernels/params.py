"""What kernels are told of a layer: the sizes of its attention; those that run whole blocks, all of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.runtime.kv_cache import LayerCache


@dataclass(frozen=True, slots=True)
class AttentionParams:
    num_heads: int
    num_kv_heads: int  # divides num_heads; query head h reads KV head h // (num_heads // num_kv_heads)
    head_dim: int
    scale: float  # multiplies q · k
    window: int | None = None  # tokens a query sees, itself included
    softcap: float | None = None  # cap * tanh(score / cap)


@dataclass(frozen=True, slots=True)
class Segment:
    """Outputs of a product whose weights are stored alike."""

    weight: Any  # what a kernel's `pack` made: the kernel knows its own
    bias: torch.Tensor | None  # [outputs of the segment]


@dataclass(frozen=True, slots=True)
class BlockParts:
    """One decoder block as a kernel for whole blocks takes it. Norms are factors, float32; None: there is none."""

    before_attention: torch.Tensor
    after_attention: torch.Tensor | None
    before_mlp: torch.Tensor
    after_mlp: torch.Tensor | None
    head_norm: torch.Tensor | None  # [num_heads + num_kv_heads, head_dim]
    eps: float
    qkv: Sequence[Segment]
    out: Sequence[Segment]
    gate_up: Sequence[Segment]
    down: Sequence[Segment]
    attention: AttentionParams
    cache: LayerCache
    rope: int  # which of the model's rotations
    activation: str
    intermediate: int
