"""Matrix product whose rows do not know each other.

BLAS picks its inner loop, and how it divides the work between threads, by the number of rows: AVX-512 and AMX kernels
sum 300 rows in another order than 64. So the library is only ever asked for products of 16 rows, the last ones padded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

ROWS = 16  # of every product


class ReferenceLinear:
    """y = x Wᵀ + b. Weights stay as they are: [out_features, in_features]."""

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
        """x [num_tokens, in_features] -> [num_tokens, out_features], dtype of x."""
        num_tokens = x.shape[0]
        out = x.new_empty(num_tokens, packed.shape[0])
        weight = packed.t()
        whole = num_tokens - num_tokens % ROWS
        for first in range(0, whole, ROWS):
            torch.mm(x[first : first + ROWS], weight, out=out[first : first + ROWS])
        if whole < num_tokens:
            last = F.pad(x[whole:], (0, 0, 0, ROWS - num_tokens + whole))
            out[whole:] = torch.mm(last, weight)[: num_tokens - whole]
        # The bias is added apart: fused, it would start the sum in some inner loops and end it in others.
        return out if bias is None else out + bias
