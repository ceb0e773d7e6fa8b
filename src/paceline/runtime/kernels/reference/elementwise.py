"""Normalisation, rotation and gated activation in float32.

Vector and scalar loops of torch round silu, sigmoid and the tanh form of gelu differently, and which loop an element
meets depends on its place in the batch. exp and tanh were measured to agree, so these are built from them.
"""

from __future__ import annotations

import math

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension (Zhang and Sennrich 2019).

    x [..., n] of any float dtype; weight [n], or [..., n] broadcast against x, float32. Returns the dtype of x.
    """
    wide = x.float()
    wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (wide * weight).to(x.dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate pairs (i, i + head_dim / 2) of x [T, heads, head_dim] in place (Su et al. 2021, half-split form).

    cos and sin are [T, 1, head_dim] float32; the first half of sin carries the minus sign.
    """
    wide = x.float()
    rotated = wide * cos
    rotated = rotated + wide.roll(wide.shape[-1] // 2, -1) * sin
    x.copy_(rotated)


def gated(gate_up: torch.Tensor, activation: str, _scratch: object = None) -> torch.Tensor:
    """activation(gate) * up for gate_up [T, 2 * n], gate first. Returns [T, n], dtype of gate_up."""
    gate, up = gate_up.float().chunk(2, -1)
    return (_activate(gate.contiguous(), activation) * up).to(gate_up.dtype)


def _activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "silu":
        return x / (1.0 + torch.exp(-x))
    if activation == "gelu":
        return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))
    assert activation == "gelu_tanh", activation
    inner = x + 0.044715 * (x * x * x)
    return 0.5 * x * (1.0 + torch.tanh(inner * math.sqrt(2.0 / math.pi)))
