"""Weights kept as floats: float32, bfloat16 or float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.errors import UnsupportedError
from paceline.runtime.kernels.params import Segment
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.layers.linear import LinearSpec, StoredBlocks

MAX_SECOND_COPY_BYTES = 256 << 20  # of a tied embedding, kept plain for lookups and packed for logits


class Dense:
    """The WeightMethod of plain float weights."""

    name = "dense"

    def create(self, spec: LinearSpec, context: BuildContext) -> DenseWeight:
        return DenseWeight(spec, context)


class DenseWeight:
    """One [out_features, in_features] matrix. Parts are cast to the spec's dtype while they are copied in.

    Once the last part has come the kernel packs the matrix into the form its product reads best, and the plain one is
    dropped, so at most one layer is held twice. Where rows are gathered too and the kernel cannot gather from its form,
    the plain one stays beside it, and a table whose second form would be too large is multiplied as it is.
    """

    def __init__(self, spec: LinearSpec, context: BuildContext) -> None:
        self.spec = spec
        self.kernel = context.kernel("linear")
        size = spec.out_features * spec.in_features * spec.dtype.itemsize
        if spec.gathers and size > MAX_SECOND_COPY_BYTES and self.kernel.without_copy is not None:
            self.kernel = self.kernel.without_copy
        self.plain: torch.Tensor | None = torch.empty(
            spec.out_features, spec.in_features, dtype=spec.dtype, device=spec.device
        )
        self.bias = torch.zeros(spec.out_features, dtype=spec.dtype, device=spec.device) if spec.bias else None
        self.packed: Any = None  # what the kernel's `pack` made
        self._missing = {part.name for part in spec.parts}
        self._rows: dict[str, slice] = {}
        begin = 0
        for part in spec.parts:
            self._rows[part.name] = slice(begin, begin + part.num_rows)
            begin += part.num_rows

    @property
    def num_bytes(self) -> int:
        held = {id(t): t for t in (self.plain, self.packed, self.bias) if t is not None}
        return sum(int(t.nbytes) for t in held.values())

    def begin_load(self) -> None:
        self._missing = {part.name for part in self.spec.parts}

    def load(self, part: str, tensor: torch.Tensor | StoredBlocks) -> None:
        """[num_rows, in_features] of any float dtype."""
        assert isinstance(tensor, torch.Tensor), "blocks are for another weight method"
        if self.plain is None:  # loading again: start from an empty matrix
            self.plain = torch.empty(
                self.spec.out_features, self.spec.in_features, dtype=self.spec.dtype, device=self.spec.device
            )
            self._missing = {p.name for p in self.spec.parts}
        self.plain[self._rows[part]].copy_(tensor)
        self._missing.discard(part)
        if not self._missing:
            if self.spec.multiplies:
                self.packed = self.kernel.pack(self.plain)
            if self.packed is not None and (not self.spec.gathers or self.kernel.gather is not None):
                self.plain = None

    def load_bias(self, part: str, tensor: torch.Tensor) -> None:
        assert self.bias is not None
        self.bias[self._rows[part]].copy_(tensor)

    def apply(self, x: torch.Tensor, scratch: Workspace | None = None) -> torch.Tensor:
        if scratch is not None and self.kernel.takes_scratch:
            return self.kernel.apply(x, self.packed, self.bias, scratch)  # type: ignore[no-any-return]
        return self.kernel.apply(x, self.packed, self.bias)  # type: ignore[no-any-return]

    def apply_wide(self, x: torch.Tensor, scratch: Workspace) -> torch.Tensor:
        return self.apply(x.float() if self.kernel.takes_floats else x, scratch).float()

    def packed_segments(self) -> list[Segment]:
        return [] if self.packed is None else [Segment(self.packed, self.bias)]

    def apply_grouped(self, x: torch.Tensor, group_sizes: Sequence[int]) -> torch.Tensor:
        raise UnsupportedError("dense weights have no grouped product", expected="a model without experts")

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        if self.plain is None:
            assert self.spec.gathers, "rows are not for gathering: LinearSpec.gathers"
            return self.kernel.gather(self.packed, ids)  # type: ignore[no-any-return]
        return self.plain.index_select(0, ids)

    def dequantize(self, part: str) -> torch.Tensor:
        whole = self.plain if self.plain is not None else self.kernel.unpack(self.packed)
        return whole[self._rows[part]]
