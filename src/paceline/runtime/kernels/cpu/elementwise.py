"""Normalisation, rotation, gated activation, largest logit: one native call each. What they do not take, torch does."""

from __future__ import annotations

import torch

from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kernels.reference.largest import largest as reference_largest
from paceline.runtime.kernels.torch_cpu import elementwise as fallback
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.threads import kernel_threads

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, n] or [T, heads, n], weight [n] or [heads, n] float32; see the reference kernel."""
    wide = x if x.dtype == torch.float32 else x.float()
    size = wide.shape[-1]
    if wide.stride(-1) != 1:
        wide = wide.contiguous()
    num_heads, head_stride = (wide.shape[1], wide.stride(1)) if wide.dim() == 3 else (1, 0)
    num_weights = weight.numel() // size
    assert wide.dim() in (2, 3)
    assert num_weights in (1, num_heads)
    assert weight.is_contiguous()
    out = torch.empty(wide.shape, dtype=torch.float32)
    library().paceline_cpu_rms_norm(
        wide.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        wide.shape[0],
        num_heads,
        num_weights,
        size,
        wide.stride(0),
        head_stride,
        eps,
        kernel_threads(),
    )
    return out if x.dtype == torch.float32 else out.to(x.dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [T, heads, head_dim] in place; see the reference kernel."""
    size = x.shape[2]
    if (
        x.dtype != torch.float32
        or cos.dtype != torch.float32
        or size % 16
        or x.stride(2) != 1
        or cos.stride(2) != 1
        or cos.stride() != sin.stride()
    ):
        fallback.rope(x, cos, sin)
        return
    library().paceline_cpu_rope(
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        x.shape[0],
        x.shape[1],
        size,
        x.stride(0),
        x.stride(1),
        cos.stride(0),
        kernel_threads(),
    )


def gated(gate_up: torch.Tensor, activation: str, scratch: Workspace | None = None) -> torch.Tensor:
    """activation(gate) * up for gate_up [T, 2 * n]; with `scratch` the result lives there until the next call."""
    kind = ACTIVATIONS.get(activation)
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    if kind is None or gate_up.dtype != torch.float32 or size % 8 or gate_up.stride(1) != 1:
        return fallback.gated(gate_up, activation, scratch)
    if scratch is None:
        out = torch.empty(num_tokens, size, dtype=torch.float32)
    else:
        out = scratch.take("gated", num_tokens * size, torch.float32, gate_up.device).view(num_tokens, size)
    library().paceline_cpu_gated(
        gate_up.data_ptr(),
        out.data_ptr(),
        num_tokens,
        size,
        gate_up.stride(0),
        kind,
        kernel_threads(),
    )
    return out


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value [S] and its lowest id [S] (int64) of logits [S, V]; see the reference kernel."""
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        return reference_largest(logits)
    num_rows, size = logits.shape
    value, place = torch.empty(num_rows, dtype=torch.float32), torch.empty(num_rows, dtype=torch.int64)
    library().paceline_cpu_largest(
        logits.data_ptr(),
        value.data_ptr(),
        place.data_ptr(),
        num_rows,
        size,
        logits.stride(0),
        kernel_threads(),
    )
    return value, place
