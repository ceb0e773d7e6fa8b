"""Matrix products with quantised weights: GGUF blocks repacked once at load, for one of three products.

`NativeBlocks`: every weight becomes the float32 number its block stands for before it is multiplied, in registers or in
the cache, and each output is summed as `linear.NativeLinear` sums it. So the results have the bits of a product with
the dequantised weights, at a seventh to a third of the memory to read. csrc/blocks.h has the layout.

`NativeInt8Blocks`: activations are rounded to 8 bits too and codes are multiplied with codes. csrc/int8.h says what is
computed and in which order.

`NativeBf16Blocks`: activations and weights are rounded to bfloat16, sums are float32; weights that come as floats are
packed for it too, and `linear.NativeBf16Linear` multiplies those alone. csrc/bf16.h has layout and order.

A row's bits are its own in all three.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline.runtime.kernels.cpu.linear import (
    BF16_ROWS,
    NativeLinear,
    PanelWeight,
    gather_rows,
    multiply,
    pack_bf16_rows,
    product_out,
)
from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kv_cache import Workspace

PANEL = 16  # outputs
LAYOUTS = {  # GGUF type -> weights and bytes of one block, as csrc/blocks.cpp has them
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}


@dataclass(frozen=True)
class BlockPanels:
    """[out_features, in_features] in panels of 16 outputs, zeros behind the last."""

    data: torch.Tensor  # [bytes] uint8
    kind: int  # how the panels are written: WeightType in csrc/linear.h
    out_features: int
    in_features: int

    @property
    def tensor(self) -> torch.Tensor:
        """All of it, as it lies in memory."""
        return self.data

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class NativeBlocks:
    """y = x Wᵀ + b in float32 with W in GGUF blocks. How panels are written decides which product it is."""

    activations = 0  # what the weights meet: Activations in csrc/blocks.h

    @classmethod
    def takes(cls, ggml_type: int) -> bool:
        """Whether blocks of this GGUF type (its number there) can be packed."""
        return int(library().paceline_cpu_packed_type(ggml_type, cls.activations)) >= 0

    @classmethod
    def packed_bytes(cls, ggml_type: int, out_features: int, in_features: int) -> int:
        """What a matrix takes once packed. Ask `takes` first."""
        native = library()
        kind = int(native.paceline_cpu_packed_type(ggml_type, cls.activations))
        return int(native.paceline_cpu_panel_bytes(kind, in_features)) * -(-out_features // PANEL)

    @classmethod
    def pack(cls, raw: np.ndarray, ggml_type: int, out_features: int, in_features: int) -> BlockPanels:
        """`raw` [bytes] uint8: the blocks as stored, row by row. A row is whole blocks."""
        native = library()
        kind = int(native.paceline_cpu_packed_type(ggml_type, cls.activations))
        assert kind >= 0, "ask `takes` first"
        block_size, block_bytes = LAYOUTS[ggml_type]
        assert in_features > 0
        assert in_features % block_size == 0, "the native code reads and writes whole blocks"
        assert raw.dtype == np.uint8
        assert raw.size == out_features * in_features // block_size * block_bytes
        raw = np.ascontiguousarray(raw)
        data = torch.zeros(cls.packed_bytes(ggml_type, out_features, in_features), dtype=torch.uint8)
        native.paceline_cpu_pack_blocks(raw.ctypes.data, data.data_ptr(), 0, out_features, in_features, ggml_type, kind)
        return BlockPanels(data, kind, out_features, in_features)

    @classmethod
    def pack_floats(cls, weight: torch.Tensor) -> BlockPanels | PanelWeight:
        """`weight` [out_features, in_features] of any float dtype: a part that is in no blocks. Keeps every number."""
        return NativeLinear.pack(weight.float())

    @staticmethod
    def float_bytes(out_features: int, in_features: int) -> int:
        """What a matrix of floats takes once packed."""
        return 4 * -(-out_features // PANEL) * PANEL * in_features

    @staticmethod
    def joined(first: BlockPanels, second: BlockPanels) -> BlockPanels | None:
        """The outputs of both as one weight; None if they are written differently or `first` ends within a panel."""
        if first.kind != second.kind or first.in_features != second.in_features or first.out_features % PANEL:
            return None
        data = torch.cat([first.data, second.data])
        return BlockPanels(data, first.kind, first.out_features + second.out_features, first.in_features)

    @staticmethod
    def gather(packed: BlockPanels, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: ids [num_tokens] int64 -> [num_tokens, in_features] float32. Raises IndexError."""
        rows = torch.empty(ids.shape[0], packed.in_features, dtype=torch.float32)
        return gather_rows(packed.data, packed.kind, packed.out_features, ids, rows)

    @staticmethod
    def unpack(packed: BlockPanels) -> torch.Tensor:
        return NativeBlocks.gather(packed, torch.arange(packed.out_features))

    @staticmethod
    def apply(
        x: torch.Tensor, packed: BlockPanels, bias: torch.Tensor | None, scratch: Workspace | None = None
    ) -> torch.Tensor:
        """x [num_tokens, in_features] -> [num_tokens, out_features] float32. `scratch` as in `NativeLinear.apply`."""
        out = product_out(x, packed.out_features, scratch)
        NativeBlocks.apply_into(x, packed, bias, out)
        return out

    @staticmethod
    def apply_into(x: torch.Tensor, packed: BlockPanels, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        """The product into `out` [num_tokens, out_features], whose rows may lie apart."""
        assert out.dtype == torch.float32
        assert x.dim() == 2
        assert x.shape[1] == packed.in_features, "the native code reads as many inputs as it is told"
        assert out.shape == (x.shape[0], packed.out_features)
        assert out.stride(1) == 1
        multiply(x, packed.data, packed.kind, packed.out_features, bias, out)


class NativeInt8Blocks(NativeBlocks):
    """y = x Wᵀ + b with W in GGUF blocks and x rounded to 8 bits in groups of 32 (Q6_K: 16) with a scale each.

    Weights lose nothing; `gather` and `unpack` give exactly what their blocks stand for."""

    activations = 1


class NativeBf16Blocks(NativeBlocks):
    """y = x Wᵀ + b with x and W rounded to bfloat16 and sums in float32.

    Blocks lose nothing in memory: `gather` and `unpack` give exactly what they stand for. Floats are rounded once, when
    they are packed."""

    activations = 2

    @staticmethod
    def float_bytes(out_features: int, in_features: int) -> int:
        return int(library().paceline_cpu_panel_bytes(BF16_ROWS, in_features)) * -(-out_features // PANEL)

    @classmethod
    def pack_floats(cls, weight: torch.Tensor) -> BlockPanels:
        return BlockPanels(pack_bf16_rows(weight).view(torch.uint8).flatten(), BF16_ROWS, *weight.shape)
