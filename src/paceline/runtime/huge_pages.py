"""Packed weights on huge pages.

A decoding step reads every weight once, in order. On pages of 4 KiB each of them costs a walk through the page tables,
twice as deep in a virtual machine, and stops the hardware's prefetch; where the kernel gives huge pages only on request
(`transparent_hugepage` = madvise, the default of most distributions), memory of the allocator has none. Weights are
mostly smaller than a huge page, so they move together, after all are loaded.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import torch

from paceline.runtime.host_allocator import give_back_free_memory

HUGE_PAGE = 2 << 20
LEAST_BYTES = 2 * HUGE_PAGE  # of all tensors together: for less it does not pay
_LINE = 64  # where a tensor begins


def move_to_huge_pages(tensors: Sequence[torch.Tensor]) -> int:
    """Move the content of dense CPU tensors into one mapping that asks for huge pages, in the order given.

    They stay the same objects at other addresses; what they held is freed one by one. Returns the bytes that moved, 0
    where there is nothing to gain."""
    ask = getattr(mmap, "MADV_HUGEPAGE", None)
    total = sum(-(-tensor.nbytes // _LINE) * _LINE for tensor in tensors)
    if ask is None or total < LEAST_BYTES:
        return 0
    mapping = mmap.mmap(-1, total + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them: the same memory on small pages
        mapping.madvise(ask)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)  # holds the mapping; so does every view
    at = -memory.data_ptr() % HUGE_PAGE
    for tensor in tensors:
        assert tensor.is_contiguous()
        moved = memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        moved.copy_(tensor)
        tensor.data = moved
        at += -(-tensor.nbytes // _LINE) * _LINE
    give_back_free_memory()
    return total
