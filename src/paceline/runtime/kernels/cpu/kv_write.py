"""Write the step's K and V into the paged cache: one copy for each token and head, or its rounding to 8 bits."""

from __future__ import annotations

import torch

from paceline.runtime.kernels.cpu.native import library
from paceline.runtime.kernels.reference.kv_write import write_kv as reference_write_kv
from paceline.runtime.kv_cache import SCALE_BYTES, LayerCache
from paceline.runtime.threads import kernel_threads


def write_kv(kv: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor) -> None:
    """kv [T, 2 * num_kv_heads, head_dim], K heads first, to slots slot_mapping [T] (block * block_size + offset)."""
    held = cache.kv
    assert kv.dtype == held.dtype
    assert kv.shape[1:] == (held.shape[0] * held.shape[1], held.shape[5])
    kv, slot_mapping = _dense(kv), _checked(slot_mapping)
    size = kv.element_size()
    library().paceline_cpu_write_kv(
        kv.data_ptr(),
        held.data_ptr(),
        slot_mapping.data_ptr(),
        kv.shape[0],
        kv.shape[1],
        kv.shape[2] * size,
        kv.stride(0) * size,
        cache.block_size,
        held.stride(1) * size,
        held.stride(2) * size,
    )


def write_int8_kv(kv: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor) -> None:
    """The same into a cache of int8, bit for bit as the reference kernel rounds. Odd head sizes go to that one."""
    held, dim = cache.kv, kv.shape[2]
    assert cache.has_scales
    assert held.shape[5] == dim + SCALE_BYTES
    if dim % 8:
        reference_write_kv(kv, cache, slot_mapping)
        return
    kv, slot_mapping = _dense(kv.float()), _checked(slot_mapping)
    library().paceline_cpu_write_kv_int8(
        kv.data_ptr(),
        held.data_ptr(),
        slot_mapping.data_ptr(),
        kv.shape[0],
        kv.shape[1],
        dim,
        kv.stride(0),
        cache.block_size,
        held.stride(1),
        held.stride(2),
        kernel_threads(),
    )


def _dense(kv: torch.Tensor) -> torch.Tensor:
    """Rows may lie apart (a slice of q, k and v), heads of a row may not."""
    return kv if kv.stride(2) == 1 and kv.stride(1) == kv.shape[2] else kv.contiguous()


def _checked(slot_mapping: torch.Tensor) -> torch.Tensor:
    assert slot_mapping.dtype == torch.int64
    return slot_mapping.contiguous()
