"""Products with GGUF blocks, plainly: the blocks become float32 numbers, by the `gguf` package's own arithmetic."""

from __future__ import annotations

import gguf
import numpy as np
import torch

from paceline.runtime.kernels.reference.linear import ReferenceLinear


class ReferenceBlocks:
    """y = x Wᵀ + b in float32 with W in GGUF blocks, kept as floats."""

    @staticmethod
    def takes(ggml_type: int) -> bool:
        return ggml_type in {kind.value for kind in gguf.GGMLQuantizationType}

    @staticmethod
    def pack(raw: np.ndarray, ggml_type: int, out_features: int, in_features: int) -> torch.Tensor:
        """`raw` [bytes] uint8: the blocks as stored, row by row -> [out_features, in_features]."""
        values = gguf.quants.dequantize(raw.reshape(out_features, -1), gguf.GGMLQuantizationType(ggml_type))
        return torch.from_numpy(values).view(out_features, in_features)

    @staticmethod
    def unpack(packed: torch.Tensor) -> torch.Tensor:
        return packed

    @staticmethod
    def gather(packed: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return packed.index_select(0, ids)

    @staticmethod
    def apply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return ReferenceLinear.apply(x, packed, bias)
