"""Write the step's K and V into the paged cache."""

from __future__ import annotations

import torch

from paceline.runtime.kv_cache import LayerCache


def write_kv(kv: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor) -> None:
    """kv [T, 2 * num_kv_heads, head_dim], K heads first, to slots slot_mapping [T] (block * block_size + offset)."""
    cache.slots.index_copy_(1, slot_mapping, kv.transpose(0, 1))
