"""Layers: the parts that model families are made of. They hold weights, know their checkpoint names, and call kernels.

`linear` owns sharding and declares the `WeightMethod` seam that quantisation fills; `dense` is the first method. A
layer is built with a `BuildContext` and allocates its weights empty; `slots()` says which checkpoint tensors it takes.
Layers may import kernels, the KV cache and the forward context; never models, the loader or the engine.
"""

from __future__ import annotations

from paceline.runtime.layers.build import BuildContext, WeightSlot
from paceline.runtime.layers.linear import LinearSpec, Part, Weight, WeightMethod

__all__ = ["BuildContext", "LinearSpec", "Part", "Weight", "WeightMethod", "WeightSlot"]
