"""Matrix products for a CPU. Each class keeps weights in the form its product reads best.

oneDNN compiles a product for each number of rows it meets and keeps all of them: 560 KiB for each, measured, and for
each shape of weight. A server meets every number up to its step's budget, so rows are padded to few numbers.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F


class PlainLinear:
    """y = x Wᵀ + b with weights as they are: [out_features, in_features]."""

    takes_scratch = takes_floats = False
    without_copy = None  # packing makes no copy
    gather = None  # rows are looked up in the plain weight

    @staticmethod
    def pack(weight: torch.Tensor) -> torch.Tensor:
        return weight

    @staticmethod
    def unpack(packed: torch.Tensor) -> torch.Tensor:
        return packed

    @staticmethod
    def apply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features]."""
        return F.linear(x, packed, bias)


def padded_rows(num_rows: int) -> int:
    """The number of rows that is computed for `num_rows`: at most 16 as they are, then eight numbers for each doubling,
    so that less than an eighth is computed in vain. cost/workspace.py counts them."""
    step = max(1, 1 << num_rows.bit_length() >> 4)
    return -(-num_rows // step) * step


class PackedLinear:
    """The same in float32, weights in oneDNN's blocked order: up to twice as fast as BLAS for 2 to 32 rows."""

    takes_scratch = takes_floats = False
    without_copy = PlainLinear  # serves when a second form of the weight would take too much memory
    gather = None  # rows are looked up in the plain weight

    @staticmethod
    def pack(weight: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None))

    @staticmethod
    def unpack(packed: torch.Tensor) -> torch.Tensor:
        return packed.to_dense()

    @staticmethod
    def apply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        num_rows = x.shape[0]
        added = padded_rows(num_rows) - num_rows
        if added:
            x = F.pad(x, (0, 0, 0, added))
        out = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return cast(torch.Tensor, out[:num_rows] if added else out)


class WidenedLinear:
    """Half-precision weights and activations on a CPU without half-precision products: computed in float32."""

    takes_scratch = takes_floats = False
    without_copy = None  # there is no other way
    gather = None  # rows are looked up in the plain weight

    @staticmethod
    def pack(weight: torch.Tensor) -> torch.Tensor:
        return PackedLinear.pack(weight.float())

    @staticmethod
    def unpack(packed: torch.Tensor) -> torch.Tensor:
        return packed.to_dense()

    @staticmethod
    def apply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return PackedLinear.apply(x.float(), packed, None if bias is None else bias.float()).to(x.dtype)
