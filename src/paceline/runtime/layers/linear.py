"""Linear layers, and the seam that weight formats plug into.

A layer may fuse several checkpoint tensors ("parts") into one product; each part keeps its name and may be stored in a
type of its own. How weights are kept and multiplied is the business of a `WeightMethod`.

`ColumnLinear` splits outputs over ranks and `RowLinear` inputs (Shoeybi et al. 2019). One rank is all there is so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from paceline.runtime.kernels.params import Segment
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.layers.build import BuildContext, WeightSlot


@dataclass(frozen=True)
class Part:
    """One checkpoint tensor within a fused weight: `num_rows` outputs."""

    name: str  # full checkpoint name without ".weight"
    num_rows: int
    stored: str | None = None  # type in the checkpoint when the method needs to know it ("q4_k"); None: any float


@dataclass(frozen=True)
class StoredBlocks:
    """A matrix as a checkpoint stores it, in quantised blocks; for weight methods that keep it so."""

    raw: np.ndarray  # [bytes] uint8, row after row
    ggml_type: int  # the type's number in GGUF
    shape: tuple[int, int]


@dataclass(frozen=True)
class LinearSpec:
    in_features: int
    parts: tuple[Part, ...]  # outputs one after another
    bias: bool
    dtype: torch.dtype
    device: torch.device
    gathers: bool = False  # `gather` will be called: a token embedding
    multiplies: bool = True  # `apply` will be called: anything but an embedding with a head of its own

    @property
    def out_features(self) -> int:
        return sum(part.num_rows for part in self.parts)


class Weight(Protocol):
    """One layer's weights in the form a method keeps them."""

    @property
    def num_bytes(self) -> int: ...

    def begin_load(self) -> None:
        """All parts will come, whatever came before: a load that failed half way leaves nothing behind."""
        ...

    def load(self, part: str, tensor: torch.Tensor | StoredBlocks) -> None:
        """Take one part, [num_rows, in_features]. After the last one the weight is ready. Blocks come only to methods
        that the loader was told of."""
        ...

    def load_bias(self, part: str, tensor: torch.Tensor) -> None:
        """Take one part of the bias, [num_rows]."""
        ...

    def apply(self, x: torch.Tensor, scratch: Workspace | None = None) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features], bias added. With `scratch` the result may live
        there, until the next product that is given the same one."""
        ...

    def apply_wide(self, x: torch.Tensor, scratch: Workspace) -> torch.Tensor:
        """The same as float32, which is not rounded to the dtype of x on the way where the kernel can help it."""
        ...

    def packed_segments(self) -> list[Segment]:
        """The outputs in order, in the forms that kernels packed them in; empty before loading, or where nothing is
        packed. They are valid until weights are loaded again."""
        ...

    def apply_grouped(self, x: torch.Tensor, group_sizes: Sequence[int]) -> torch.Tensor:
        """Mixture of experts: runs of rows, each times its own expert's part. UnsupportedError if it cannot."""
        ...

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: [num_tokens] int64 -> [num_tokens, in_features]. Needs `LinearSpec.gathers`."""
        ...

    def dequantize(self, part: str) -> torch.Tensor:
        """One part as floats, [num_rows, in_features]."""
        ...


class WeightMethod(Protocol):
    """A weight format."""

    name: str

    def create(self, spec: LinearSpec, context: BuildContext) -> Weight: ...


class Linear:
    """y = x Wᵀ + b, all parts in one product."""

    def __init__(self, in_features: int, parts: Sequence[Part], context: BuildContext, *, bias: bool = False) -> None:
        self.spec = LinearSpec(in_features, tuple(parts), bias, context.dtype, context.device)
        self.weight = context.weight_method(parts[0].name).create(self.spec, context)

    def __call__(self, x: torch.Tensor, scratch: Workspace | None = None) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features]; `scratch` as in `Weight.apply`."""
        return self.weight.apply(x, scratch)

    def slots(self) -> Iterator[WeightSlot]:
        for part in self.spec.parts:
            shape = (part.num_rows, self.spec.in_features)
            yield WeightSlot(f"{part.name}.weight", shape, partial(self.weight.load, part.name))
            if self.spec.bias:
                yield WeightSlot(f"{part.name}.bias", (part.num_rows,), partial(self.weight.load_bias, part.name))


class ColumnLinear(Linear):
    """Outputs belong to ranks: each computes its own, nothing is exchanged."""

    def __init__(
        self, name: str, in_features: int, out_features: int, context: BuildContext, *, bias: bool = False
    ) -> None:
        super().__init__(in_features, [Part(name, out_features)], context, bias=bias)


class RowLinear(Linear):
    """Inputs belong to ranks: each computes a partial sum of all outputs."""

    def __init__(
        self, name: str, in_features: int, out_features: int, context: BuildContext, *, bias: bool = False
    ) -> None:
        super().__init__(in_features, [Part(name, out_features)], context, bias=bias)


class MergedLinear(Linear):
    """Several column-split products of one input, such as gate and up."""

    def __init__(
        self,
        prefix: str,
        names: Sequence[str],
        in_features: int,
        out_features: int,
        context: BuildContext,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__(in_features, [Part(f"{prefix}.{name}", out_features) for name in names], context, bias=bias)


class QKVLinear(Linear):
    """q, k and v of one input in one product; a rank holds whole heads."""

    def __init__(
        self,
        prefix: str,
        in_features: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        context: BuildContext,
        *,
        bias: bool = False,
    ) -> None:
        sizes = {"q_proj": num_heads, "k_proj": num_kv_heads, "v_proj": num_kv_heads}
        parts = [Part(f"{prefix}.{name}", heads * head_dim) for name, heads in sizes.items()]
        super().__init__(in_features, parts, context, bias=bias)
