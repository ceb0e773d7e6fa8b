"""Matrix product whose rows do not know each other.

BLAS picks its inner loop, and how it shares sums between threads, by the number of rows. So every product here has 16
rows: more are taken in turns, and the last ones are padded. (Padding alone was enough with MKL on AVX2; on AVX-512 two
threads sum 64 rows in another order than 300.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

ROWS = 16


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
        padding = -num_tokens % ROWS
        if padding:
            x = F.pad(x, (0, 0, 0, padding))
        # The bias is added apart: fused, it would start the sum in some inner loops and end it in others.
        parts = [F.linear(part, packed) for part in x.split(ROWS)]
        out = (parts[0] if len(parts) == 1 else torch.cat(parts))[:num_tokens]
        return out if bias is None else out + bias
