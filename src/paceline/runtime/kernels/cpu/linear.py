"""Matrix products with packed weights: float32, or bfloat16 widened in registers (half the memory to read).

An output is one chain of fused multiply-adds in one order, so its bits do not depend on the rows beside it, on their
number or on the threads: this product is batch-invariant. csrc/linear.h has the layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.threads import kernel_threads

_TYPES = {torch.float32: 0, torch.bfloat16: 1}  # WeightType in csrc/linear.h
BF16_ROWS = 17  # there too: of floats packed for activations of bfloat16
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class PanelWeight:
    """[out_features, in_features] in panels of 16 outputs, zeros behind the last."""

    values: torch.Tensor  # [num_panels, in_features, 16]; BF16_ROWS: [num_panels, in_features / 32, 16, 32]
    out_features: int
    in_features: int
    kind: int  # how the panels are written: WeightType in csrc/linear.h

    @property
    def tensor(self) -> torch.Tensor:
        """All of it, as it lies in memory."""
        return self.values

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


class NativeLinear:
    """y = x Wᵀ + b. Sums are float32 of activations as they are, of the weight's dtype or float32."""

    takes_scratch = True
    takes_floats = True  # activations of float32, whatever the weight's dtype
    without_copy = None  # rows are gathered from the packed form: no second copy is ever made

    @classmethod
    def pack(cls, weight: torch.Tensor) -> PanelWeight:
        """`weight` [out_features, in_features] float32 or bfloat16."""
        weight = weight.contiguous()
        rows, columns = weight.shape
        assert columns > 0
        values = torch.zeros(-(-rows // 16), columns, 16, dtype=weight.dtype)
        kind = _TYPES[weight.dtype]
        library().paceline_cpu_pack(weight.data_ptr(), values.data_ptr(), 0, rows, columns, kind)
        return PanelWeight(values, rows, columns, kind)

    @staticmethod
    def unpack(packed: PanelWeight) -> torch.Tensor:
        return NativeLinear.gather(packed, torch.arange(packed.out_features))

    @staticmethod
    def gather(packed: PanelWeight, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: ids [num_tokens] int64 -> [num_tokens, in_features]. Raises IndexError."""
        stored = packed.values.dtype  # the native code gives rows of BF16_ROWS as float32
        rows = torch.empty(
            ids.shape[0], packed.in_features, dtype=torch.float32 if packed.kind == BF16_ROWS else stored
        )
        return gather_rows(packed.values, packed.kind, packed.out_features, ids, rows).to(stored)

    @staticmethod
    def apply(
        x: torch.Tensor, packed: PanelWeight, bias: torch.Tensor | None, scratch: Workspace | None = None
    ) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features]. Rows of x may lie apart. With `scratch` the result
        lives there until the next product with the same one."""
        out = product_out(x, packed.out_features, scratch)
        NativeLinear.apply_into(x, packed, bias, out)
        return out if x.dtype == torch.float32 else out.to(x.dtype)

    @staticmethod
    def apply_into(x: torch.Tensor, packed: PanelWeight, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        """The product into `out` [num_tokens, out_features] float32, whose rows may lie apart."""
        assert x.dim() == 2
        assert x.shape[1] == packed.in_features, "the native code reads as many inputs as it is told"
        assert out.dtype == torch.float32
        assert out.shape == (x.shape[0], packed.out_features)
        assert out.stride(1) == 1
        multiply(x, packed.values, packed.kind, packed.out_features, bias, out)


class NativeBf16Linear(NativeLinear):
    """y = x Wᵀ + b: weights of bfloat16, x rounded to it, sums in float32 in the order of csrc/bf16.h."""

    @classmethod
    def pack(cls, weight: torch.Tensor) -> PanelWeight:
        rows, columns = weight.shape
        return PanelWeight(pack_bf16_rows(weight), rows, columns, BF16_ROWS)


def pack_bf16_rows(weight: torch.Tensor) -> torch.Tensor:
    """[out_features, in_features] of any float dtype -> [num_panels, num_units, 16, 32] bfloat16 as in csrc/bf16.h.

    Rounded once, to nearest with ties to even. Some rows are float32 meanwhile, never a whole matrix."""
    rows, columns = weight.shape
    assert columns > 0
    values = torch.zeros(-(-rows // 16), -(-columns // 32), 16, 32, dtype=torch.bfloat16)
    for begin in range(0, rows, _ROWS_AT_ONCE):
        part = weight[begin : begin + _ROWS_AT_ONCE].float().contiguous()
        library().paceline_cpu_pack_bf16_rows(part.data_ptr(), values.data_ptr(), begin, len(part), columns)
    return values


def product_out(x: torch.Tensor, out_features: int, scratch: Workspace | None) -> torch.Tensor:
    """Where a product of x goes, [num_tokens, out_features] float32: fresh, or in `scratch` until the next one."""
    shape = (x.shape[0], out_features)
    if scratch is None:
        return torch.empty(shape, dtype=torch.float32)
    return scratch.take("product", shape[0] * shape[1], torch.float32, x.device).view(shape)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, kind: int, out_features: int, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """The native call, for packed weights of any kind. Shapes are the caller's to check.

    Rounded activations live in memory of torch, not of the library: the worst step's measurement sees it go, and where
    there is none torch raises RuntimeError."""
    x = x.float()
    if x.stride(1) != 1 or x.stride(0) < x.shape[1]:
        x = x.contiguous()
    if bias is not None:
        assert bias.shape == (out_features,)
        bias = bias.float().contiguous()
    native, rounded = library(), None
    if size := native.paceline_cpu_linear_scratch(kind, x.shape[0], x.shape[1]):
        rounded = torch.empty(size, dtype=torch.uint8)
    native.paceline_cpu_linear(
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        None if rounded is None else rounded.data_ptr(),
        x.shape[0],
        x.shape[1],
        out_features,
        x.stride(0),
        out.stride(0),
        kind,
        kernel_threads(),
    )


def gather_rows(
    weight: torch.Tensor, kind: int, out_features: int, ids: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """rows[i] = row ids[i] of a packed weight; ids [num_tokens] int64. Returns `rows`. Raises IndexError."""
    assert ids.dtype == torch.int64
    assert ids.dim() == 1
    ids = ids.contiguous()
    done = library().paceline_cpu_gather(
        weight.data_ptr(), ids.data_ptr(), rows.data_ptr(), ids.shape[0], out_features, rows.shape[1], kind
    )
    if done < ids.shape[0]:
        raise IndexError(f"row {int(ids[done])} of a weight with {out_features} rows")
    return rows
