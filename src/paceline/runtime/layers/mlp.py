"""The gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paceline.contracts.specs import ModelSpec
from paceline.runtime.layers.build import BuildContext, WeightSlot
from paceline.runtime.layers.linear import MergedLinear, RowLinear


class GatedMLP:
    """down(activation(gate(x)) * up(x)), gate and up in one product (Shazeer 2020)."""

    def __init__(self, prefix: str, spec: ModelSpec, context: BuildContext) -> None:
        size, bias = spec.intermediate_size, spec.mlp_bias
        self.activation = spec.activation
        self.gate_up = MergedLinear(prefix, ("gate_proj", "up_proj"), spec.hidden_size, size, context, bias=bias)
        self.down = RowLinear(f"{prefix}.down_proj", size, spec.hidden_size, context, bias=bias)
        self.gated, self.scratch = context.kernel("gated"), context.scratch

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        return self.down(self.gated(self.gate_up(x, self.scratch), self.activation, self.scratch))

    def slots(self) -> Iterator[WeightSlot]:
        yield from self.gate_up.slots()
        yield from self.down.slots()
