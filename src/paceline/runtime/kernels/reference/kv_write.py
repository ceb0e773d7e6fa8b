"""Write the step's K and V into the paged cache."""

from __future__ import annotations

import torch

from paceline.runtime.kernels.reference.kv_int8 import to_records
from paceline.runtime.kv_cache import CHUNK_BLOCKS, LayerCache


def write_kv(kv: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor) -> None:
    """kv [T, 2 * num_kv_heads, head_dim], K heads first, to slots slot_mapping [T] (block * block_size + offset).

    The cache's dtype is that of kv, or int8: then kv is rounded."""
    if cache.has_scales:
        kv = to_records(kv)
    heads = cache.kv.flatten(0, 1)  # [2 * H, chunks, 8, S, D]
    block, offset = slot_mapping // cache.block_size, slot_mapping % cache.block_size
    heads[:, block // CHUNK_BLOCKS, block % CHUNK_BLOCKS, offset] = kv.transpose(0, 1)
