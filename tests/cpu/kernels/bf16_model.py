"""The product of bfloat16 in numpy, exactly as csrc/bf16.h states its order: what native kernels must give bit by bit.

The steps are those that Intel gives for TDPBF16PS and VDPBF16PS (Software Developer's Manual, volume 2; Architecture
Instruction Set Extensions Programming Reference). Numbers here stay above 2^-126; the instructions take less for zero.
"""

from __future__ import annotations

import numpy as np
from tests.cpu.kernels.int8_model import F32, fma

UNIT = 32


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Finite float32 rounded to bfloat16, to nearest with ties to even, as float32."""
    bits = x.astype(F32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F32)


def units(x: np.ndarray) -> np.ndarray:
    """[rows, inputs] -> [units, UNIT, rows], zeros behind the last input."""
    padded = np.zeros((len(x), -(-x.shape[1] // UNIT) * UNIT), F32)
    padded[:, : x.shape[1]] = bfloat16(x)
    return padded.T.reshape(-1, UNIT, len(x))


def with_tiles(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [rows, inputs], weight [outputs, inputs], both float32 -> [rows, outputs] float32, as AMX sums."""
    out = np.zeros((len(x), len(weight)), F32)
    for a, w in zip(units(x), units(weight), strict=True):
        chains = [np.zeros_like(out), np.zeros_like(out)]
        for k in range(UNIT):
            chains[k % 2] = fma(a[k][:, None], w[k], chains[k % 2])
        out = out + (chains[0] + chains[1])
    return out


def with_pairs(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The same, as AVX-512 BF16 sums."""
    sums = np.zeros((16, len(x), len(weight)), F32)
    for a, w in zip(units(x), units(weight), strict=True):
        for i in range(16):
            odd = fma(a[2 * i + 1][:, None], w[2 * i + 1], sums[i])
            sums[i] = fma(a[2 * i][:, None], w[2 * i], odd)
    for half in (8, 4, 2, 1):
        sums = sums[:half] + sums[half : 2 * half]
    return sums[0]


MODELS = {"amx": with_tiles, "vnni512": with_pairs}  # by level of instructions
