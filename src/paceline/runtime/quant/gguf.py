"""GGUF blocks kept quantised: a WeightMethod for a CPU with native kernels.

A layer may fuse parts of different types (a K-quant mix does). Neighbours of one type become one product; the others
stand beside each other and write to the same rows. Parts in a type that no kernel packs come as floats and are kept so,
unless the method rounds them or the kernel has a form of its own for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from paceline.errors import UnsupportedError
from paceline.runtime.kernels.cpu.blocks import BlockPanels, NativeBlocks
from paceline.runtime.kernels.cpu.linear import NativeLinear, PanelWeight, product_out
from paceline.runtime.kernels.params import Segment
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.layers.linear import LinearSpec, StoredBlocks
from paceline.runtime.quant.rounded import GROUP, round_to_8_bits

Packed: TypeAlias = BlockPanels | PanelWeight


class GgufBlocks:
    """The WeightMethod. The kernel says what becomes of weights: floats, or bfloat16, that they stand for."""

    name = "gguf"

    def __init__(self, kernel: type[NativeBlocks] = NativeBlocks, *, rounds: bool = False, keeps: bool = True) -> None:
        """`rounds`: parts that come as floats are rounded to blocks of 8 bits. `keeps`: blocks are wanted as blocks."""
        self.kernel, self.rounds, self.keeps = kernel, rounds, keeps

    def create(self, spec: LinearSpec, context: BuildContext) -> BlockWeight:
        return BlockWeight(spec, self.kernel, rounds=self.rounds)

    def takes(self, ggml_type: int) -> bool:
        """Whether matrices of this GGUF type (its number there) are wanted as blocks."""
        return self.keeps and self.kernel.takes(ggml_type)


class BlockWeight:
    """One [out_features, in_features] matrix in segments of outputs, each packed in a form of its own."""

    def __init__(self, spec: LinearSpec, kernel: type[NativeBlocks] = NativeBlocks, *, rounds: bool = False) -> None:
        self.spec = spec
        self.kernel = kernel  # packs blocks; how they are packed decides how they are multiplied
        self.rounds = rounds and spec.in_features % GROUP == 0
        self.bias = torch.zeros(spec.out_features, dtype=torch.float32) if spec.bias else None
        self._parts: dict[str, Packed] = {}  # until all are there
        self.segments: list[Packed] = []
        self._where: dict[str, slice] = {}  # rows of each part
        begin = 0
        for part in spec.parts:
            self._where[part.name] = slice(begin, begin + part.num_rows)
            begin += part.num_rows

    @property
    def num_bytes(self) -> int:
        held = sum(segment.nbytes for segment in self.segments)
        return held if self.bias is None else held + self.bias.nbytes

    def begin_load(self) -> None:
        self._parts = {}

    def load(self, part: str, tensor: torch.Tensor | StoredBlocks) -> None:
        """[num_rows, in_features], as blocks or of any float dtype."""
        if self.rounds and isinstance(tensor, torch.Tensor):
            tensor = round_to_8_bits(tensor)
        if isinstance(tensor, StoredBlocks):
            self._parts[part] = self.kernel.pack(tensor.raw, tensor.ggml_type, *tensor.shape)
        else:
            self._parts[part] = self.kernel.pack_floats(tensor)
        if len(self._parts) == len(self.spec.parts):
            self.segments = _joined([self._parts[p.name] for p in self.spec.parts])
            self._parts = {}

    def load_bias(self, part: str, tensor: torch.Tensor) -> None:
        assert self.bias is not None
        self.bias[self._where[part]].copy_(tensor)

    def apply(self, x: torch.Tensor, scratch: Workspace | None = None) -> torch.Tensor:
        out = product_out(x, self.spec.out_features, scratch)
        begin = 0
        for segment in self.packed_segments():
            end = begin + segment.weight.out_features
            kernel = NativeBlocks if isinstance(segment.weight, BlockPanels) else NativeLinear
            kernel.apply_into(x, segment.weight, segment.bias, out[:, begin:end])
            begin = end
        return out.to(x.dtype)

    def apply_wide(self, x: torch.Tensor, scratch: Workspace) -> torch.Tensor:
        return self.apply(x.float(), scratch)

    def packed_segments(self) -> list[Segment]:
        found, begin = [], 0
        for segment in self.segments:
            end = begin + segment.out_features
            found.append(Segment(segment, None if self.bias is None else self.bias[begin:end]))
            begin = end
        return found

    def apply_grouped(self, x: torch.Tensor, group_sizes: Sequence[int]) -> torch.Tensor:
        raise UnsupportedError("GGUF blocks have no grouped product yet", expected="a model without experts")

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        assert len(self.segments) == 1, "a table that rows are gathered from is one part"
        return _rows(self.segments[0], ids).to(self.spec.dtype)

    def dequantize(self, part: str) -> torch.Tensor:
        whole = [_rows(segment, torch.arange(segment.out_features)) for segment in self.segments]
        return torch.cat(whole)[self._where[part]]


def _rows(packed: Packed, ids: torch.Tensor) -> torch.Tensor:
    return NativeBlocks.gather(packed, ids) if isinstance(packed, BlockPanels) else NativeLinear.gather(packed, ids)


def _joined(parts: list[Packed]) -> list[Packed]:
    """Neighbours that can be one weight made one."""
    segments = [parts[0]]
    for part in parts[1:]:
        last = segments[-1]
        both = (
            NativeBlocks.joined(last, part) if isinstance(last, BlockPanels) and isinstance(part, BlockPanels) else None
        )
        if both is None:
            segments.append(part)
        else:
            segments[-1] = both
    return segments
