"""Kernels: what a layer computes, several ways. `dispatch` says which way serves which device, dtype and numerics.

`reference` is plain torch, slow and the truth: a row's result never depends on the rest of the batch. `torch_cpu` is
the fast way on a CPU. Implementations of one op share a signature, are compared by one parametrised test and timed by
one benchmark. A kernel imports torch, numpy, the contracts, the forward context and the KV cache; never layers or
models.
"""

from __future__ import annotations

from paceline.runtime.kernels.dispatch import Kernel, Numerics, explain, pick

__all__ = ["Kernel", "Numerics", "explain", "pick"]
