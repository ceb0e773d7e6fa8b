"""A decoder block's layers taken apart, for kernels that run whole blocks."""

from __future__ import annotations

from paceline.runtime.kernels.params import BlockParts
from paceline.runtime.layers.attention import Attention
from paceline.runtime.layers.mlp import GatedMLP
from paceline.runtime.layers.norm import RMSNorm

__all__ = ["BlockParts", "parts_of"]


def parts_of(
    attention: Attention,
    mlp: GatedMLP,
    *,
    before_attention: RMSNorm,
    after_attention: RMSNorm | None,
    before_mlp: RMSNorm,
    after_mlp: RMSNorm | None,
    rope: int,
) -> BlockParts | None:
    """The block as it is now, bound to its cache; `rope`: which of the model's rotations. None: weights are not loaded,
    or not packed."""
    layers = (attention.qkv, attention.out, mlp.gate_up, mlp.down)
    qkv, out, gate_up, down = (layer.weight.packed_segments() for layer in layers)
    if attention.cache is None or not (qkv and out and gate_up and down):
        return None
    return BlockParts(
        before_attention=before_attention.factor,
        after_attention=None if after_attention is None else after_attention.factor,
        before_mlp=before_mlp.factor,
        after_mlp=None if after_mlp is None else after_mlp.factor,
        head_norm=None if attention.head_norm is None else attention.head_norm.factor,
        eps=before_attention.eps,
        qkv=qkv,
        out=out,
        gate_up=gate_up,
        down=down,
        attention=attention.params,
        cache=attention.cache,
        rope=rope,
        activation=mlp.activation,
        intermediate=mlp.down.spec.in_features,
    )
