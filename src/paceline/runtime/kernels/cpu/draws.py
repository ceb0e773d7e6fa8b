"""Passes over the whole vocabulary that a draw takes, in native code; see the reference kernels."""

from __future__ import annotations

import numpy as np
import torch

from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kernels.reference.largest import PIECE
from paceline.runtime.threads import kernel_threads


def draw_bounds(z: torch.Tensor, rows: torch.Tensor, multiplier: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """One pass that writes a number for each piece; torch makes seven, over copies."""
    assert z.dtype == torch.float32
    assert z.stride(1) == 1
    assert multiplier.dtype == offset.dtype == torch.int32
    multiplier, offset = multiplier[rows].contiguous(), offset[rows].contiguous()
    rows = rows.contiguous()
    out = torch.empty(len(rows), -(-z.shape[1] // PIECE), dtype=torch.float32)
    library().paceline_cpu_draw_bounds(
        z.data_ptr(),
        rows.data_ptr(),
        multiplier.data_ptr(),
        offset.data_ptr(),
        out.data_ptr(),
        len(rows),
        z.shape[1],
        z.stride(0),
        kernel_threads(),
    )
    return out


def draw_scale(logits: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor) -> None:
    assert logits.dtype == largest.dtype == temperature.dtype == torch.float32
    assert logits.stride(1) == 1
    assert len(largest) == len(temperature) == len(logits)
    largest, temperature = largest.contiguous(), temperature.contiguous()
    library().paceline_cpu_draw_scale(
        logits.data_ptr(),
        largest.data_ptr(),
        temperature.data_ptr(),
        *logits.shape,
        logits.stride(0),
        kernel_threads(),
    )


def keep_allowed(logits: torch.Tensor, rows: np.ndarray, words: np.ndarray) -> torch.Tensor:
    """One pass for all of them; it sees the largest numbers as it goes."""
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    words = np.ascontiguousarray(words, dtype=np.uint32)
    assert len(rows) == len(words)
    assert words.shape[1] * 32 >= logits.shape[1]
    largest = torch.empty(len(rows), dtype=torch.float32)
    library().paceline_cpu_keep_allowed(
        logits.data_ptr(),
        rows.ctypes.data,
        words.ctypes.data,
        largest.data_ptr(),
        len(rows),
        logits.shape[1],
        logits.stride(0),
        words.shape[1],
        kernel_threads(),
    )
    return largest
