"""Write the step's K and V into the paged cache: one copy for each token and head."""

from __future__ import annotations

import torch

from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kv_cache import LayerCache


def write_kv(kv: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor) -> None:
    """kv [T, 2 * num_kv_heads, head_dim], K heads first, to slots slot_mapping [T] (block * block_size + offset)."""
    slots = cache.slots
    assert kv.dtype == slots.dtype
    assert slot_mapping.dtype == torch.int64
    slot_mapping = slot_mapping.contiguous()
    if kv.stride(2) != 1 or kv.stride(1) != kv.shape[2]:
        kv = kv.contiguous()  # rows may lie apart (a slice of q, k and v), heads of a row may not
    size = kv.element_size()
    library().paceline_cpu_write_kv(
        kv.data_ptr(),
        slots.data_ptr(),
        slot_mapping.data_ptr(),
        kv.shape[0],
        kv.shape[1],
        kv.shape[2] * size,
        kv.stride(0) * size,
        slots.stride(0) * size,
    )
