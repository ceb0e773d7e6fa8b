"""Matrix product whose rows do not know each other.

BLAS picks its inner loop by the number of rows, and small counts sum in another order. Measured with MKL and one and
two threads: from 12 rows on every count gives the same bits per row, so rows are padded to a multiple of 16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

ROW_MULTIPLE = 16


class ReferenceLinear:
    """y = x Wᵀ + b. Weights stay as they are: [out_features, in_features]."""

    takes_scratch = False
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
        """x [num_tokens, in_features] -> [num_tokens, out_features], dtype of x."""
        num_tokens = x.shape[0]
        padding = -num_tokens % ROW_MULTIPLE
        if padding:
            x = F.pad(x, (0, 0, 0, padding))
        # The bias is added apart: fused, it would start the sum in some inner loops and end it in others.
        out = F.linear(x, packed)[:num_tokens]
        return out if bias is None else out + bias
