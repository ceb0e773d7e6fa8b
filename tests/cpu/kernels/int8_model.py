"""The integer product in numpy, exactly as csrc/int8.h states it: what the native kernel must give bit by bit.

Codes and scales of GGUF blocks are found with the `gguf` package's own arithmetic: a block whose scales are one and
whose offsets are zero stands for its codes, one whose codes are one stands for its scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np

F32, F64 = np.float32, np.float64
Change = Callable[[np.ndarray], None]  # of blocks [count, bytes] in place
ONE = np.frombuffer(np.float16(1).tobytes(), np.uint8)


@dataclass(frozen=True)
class Quantised:
    """A weight as integers."""

    codes: np.ndarray  # [outputs, inputs] int64, around zero where there is no offset
    scale: np.ndarray  # [outputs, groups] float32
    offset: np.ndarray | None  # [outputs, groups] float32
    group: int


def put(*fields: tuple[int, int, int | np.ndarray]) -> Change:
    """Bytes from begin to end of every block set to a value."""

    def change(blocks: np.ndarray) -> None:
        for begin, end, value in fields:
            blocks[:, begin:end] = value

    return change


K_ONES = ((4, 8, 1), (8, 12, 0), (12, 16, 1))  # all six-bit scales one, all minimums zero
# type -> (scales one and offsets zero; codes one, offsets zero; codes zero where there are offsets, group)
CHANGES: dict[str, tuple[Change, Change, Change | None, int]] = {
    "Q4_0": (put((0, 2, ONE)), put((2, 18, 0x99)), None, 32),
    "Q4_1": (put((0, 2, ONE), (2, 4, 0)), put((4, 20, 0x11), (2, 4, 0)), put((4, 20, 0)), 32),
    "Q5_0": (put((0, 2, ONE)), put((2, 6, 0xFF), (6, 22, 0x11)), None, 32),
    "Q5_1": (put((0, 2, ONE), (2, 4, 0)), put((4, 8, 0), (8, 24, 0x11), (2, 4, 0)), put((4, 24, 0)), 32),
    "Q8_0": (put((0, 2, ONE)), put((2, 34, 1)), None, 32),
    "Q4_K": (put((0, 2, ONE), (2, 4, 0), *K_ONES), put((16, 144, 0x11), (2, 4, 0)), put((16, 144, 0)), 32),
    "Q5_K": (put((0, 2, ONE), (2, 4, 0), *K_ONES), put((16, 48, 0), (48, 176, 0x11), (2, 4, 0)), put((16, 176, 0)), 32),
    "Q6_K": (put((192, 208, 1), (208, 210, ONE)), put((0, 128, 0x11), (128, 192, 0xAA)), None, 16),
}


def quantised(name: str, raw: np.ndarray, outputs: int, inputs: int) -> Quantised:
    """`raw` [bytes] uint8: the blocks of a weight."""
    kind = gguf.GGMLQuantizationType[name]
    to_codes, to_scales, to_offsets, group = CHANGES[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]

    def read(change: Change) -> np.ndarray:
        blocks = raw.reshape(-1, size).copy()
        change(blocks)
        return gguf.quants.dequantize(blocks.reshape(outputs, -1), kind).reshape(outputs, inputs)

    codes = read(to_codes)
    assert np.array_equal(codes, np.rint(codes))
    offset = None if to_offsets is None else read(to_offsets)[:, ::group].astype(F32)
    return Quantised(codes.astype(np.int64), read(to_scales)[:, ::group].astype(F32), offset, group)


def activations(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """x [rows, inputs] float32 -> codes [rows, groups, group] int64, scale [rows, groups] float32."""
    parts = x.reshape(len(x), x.shape[1] // group, group)
    most = np.abs(parts).max(2)
    most[most < F32(1e-36)] = 0
    factor = np.divide(F32(127), most, out=np.zeros_like(most), where=most > 0)
    codes = np.rint(parts * factor[:, :, None])
    assert np.abs(codes).max(initial=0) <= 127
    return codes.astype(np.int64), most / F32(127)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c of float32 numbers rounded once. a b is exact in float64, with at most 48 of its 53 bits; the sum is
    rounded to odd there, after which rounding to float32 is right (Boldo and Melquiond 2008)."""
    product, other = a.astype(F64) * b.astype(F64), c.astype(F64)
    total = product + other
    back = total - product
    error = (product - (total - back)) + (other - back)
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(total, toward), total).astype(F32)


def product(x: np.ndarray, weight: Quantised, bias: np.ndarray | None = None) -> np.ndarray:
    """x [rows, inputs] float32 -> [rows, outputs] float32."""
    codes, d = activations(x, weight.group)
    w = weight.codes.reshape(len(weight.codes), -1, weight.group)
    sums = np.einsum("mgk,ngk->mng", codes, w)
    out = np.zeros(sums.shape[:2], F32)
    for g in range(sums.shape[2]):
        scale = weight.scale[:, g] * d[:, g, None]
        out = fma(scale, sums[:, :, g].astype(F32), out)
        if weight.offset is not None:
            all_codes = d[:, g] * codes[:, g].sum(1).astype(F32)
            out = fma(weight.offset[None, :, g], all_codes[:, None], out)
    return out if bias is None else out + bias
