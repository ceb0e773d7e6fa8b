"""What a layer is given when it is built, and what it asks of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from paceline.runtime.kernels.dispatch import Numerics, pick
from paceline.runtime.kv_cache import KVCache, Workspace

if TYPE_CHECKING:
    from paceline.runtime.layers.linear import WeightMethod


def _dense(_layer_name: str) -> WeightMethod:
    from paceline.runtime.layers.dense import Dense

    return Dense()


@dataclass(frozen=True)
class BuildContext:
    """Everything about a model that is not its architecture."""

    dtype: torch.dtype = torch.float32  # of activations and dense weights; and of the KV cache if that is not of 8 bits
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    numerics: Numerics = "fast"
    kv_cache: KVCache | None = None  # None: bound later by Model.bind_kv_cache, once memory is measured
    # for results that end within their layer: fresh large tensors cost page faults. One forward pass at a time
    scratch: Workspace = field(default_factory=Workspace)
    weight_method: Callable[[str], WeightMethod] = _dense  # by layer name, as in the checkpoint

    def kernel(self, op: str) -> Any:
        """The implementation that serves `op` here."""
        return pick(op, self.device, self.dtype, self.numerics)


@dataclass(frozen=True)
class WeightSlot:
    """One checkpoint tensor that a layer takes."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[Any], None]  # a tensor, or what its weight method keeps. Copies: it may be dropped afterwards
    optional: bool = False
