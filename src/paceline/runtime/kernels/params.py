"""Sizes of one attention layer, as kernels take them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionParams:
    num_heads: int
    num_kv_heads: int  # divides num_heads; query head h reads KV head h // (num_heads // num_kv_heads)
    head_dim: int
    scale: float  # multiplies q · k
    window: int | None = None  # tokens a query sees, itself included
    softcap: float | None = None  # cap * tanh(score / cap)
