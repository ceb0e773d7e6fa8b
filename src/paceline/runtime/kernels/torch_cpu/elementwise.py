"""Normalisation, rotation and gated activation in as few torch calls as it takes: at one row, calls are the cost."""

from __future__ import annotations

from functools import cache

import torch

from paceline.runtime.kv_cache import Workspace


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension; see the reference kernel for shapes."""
    wide = x if x.dtype == torch.float32 else x.float()
    norm = torch.linalg.vector_norm(wide, 2, -1, True)
    # 1 / sqrt(norm² / n + eps)
    inverse = torch.addcmul(_constant(eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    scaled = torch.mul(wide, inverse).mul_(weight)
    return scaled if x.dtype == torch.float32 else scaled.to(x.dtype)


@cache
def _constant(value: float) -> torch.Tensor:
    return torch.tensor([value])


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate pairs (i, i + head_dim / 2) of x [T, heads, head_dim] in place; see the reference kernel."""
    half = x.shape[-1] // 2
    if x.dtype == torch.float32:
        rolled = x.roll(half, -1)
        x.mul_(cos).addcmul_(rolled, sin)
        return
    wide = x.float()
    x.copy_((wide * cos).addcmul_(wide.roll(half, -1), sin))


def gated(gate_up: torch.Tensor, activation: str, scratch: Workspace | None = None) -> torch.Tensor:
    """activation(gate) * up for gate_up [T, 2 * n]. Returns [T, n], with `scratch` living there until the next call.

    Not in place: rows of the gate lie 2 n apart, often a multiple of a page, and a product would read them all through
    the same few sets of the first-level cache.
    """
    gate, up = gate_up.chunk(2, -1)
    if scratch is None:
        active = torch.empty_like(gate, memory_format=torch.contiguous_format)
    else:
        active = scratch.take("gated", gate.numel(), gate.dtype, gate.device).view(gate.shape)
    match activation:
        case "silu":
            torch.ops.aten.silu.out(gate, out=active)
        case "gelu":
            torch.ops.aten.gelu.out(gate, out=active)
        case _:
            torch.ops.aten.gelu.out(gate, approximate="tanh", out=active)
    return active.mul_(up)
