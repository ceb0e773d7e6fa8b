"""Packed weights and the KV cache on huge pages.

A decoding step reads every weight once, in order. On pages of 4 KiB each of them costs a walk through the page tables,
twice as deep in a virtual machine, and stops the hardware's prefetch; where the kernel gives huge pages only on request
(`transparent_hugepage` = madvise, the default of most distributions), memory of the allocator has none. Weights are
mostly smaller than a huge page, so they move together, after all are loaded.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import numpy as np
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
    memory, at = _mapped(total, ask), 0
    for tensor in tensors:
        assert tensor.is_contiguous()
        moved = memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        moved.copy_(tensor)
        tensor.data = moved
        at += -(-tensor.nbytes // _LINE) * _LINE
    give_back_free_memory()
    return total


def zeroed(num_bytes: int) -> torch.Tensor:
    """[num_bytes] uint8 of zeros, whose pages the system gives when they are first written, huge ones where it has them
    and there are enough bytes. Raises MemoryError."""
    ask = getattr(mmap, "MADV_HUGEPAGE", None)
    if ask is None or num_bytes < LEAST_BYTES:
        return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))
    try:
        return _mapped(num_bytes, ask)
    except OSError as error:
        raise MemoryError(f"mapping {num_bytes} bytes: {error.strerror}") from error


def _mapped(num_bytes: int, ask: int) -> torch.Tensor:
    """[num_bytes] uint8 from the start of a huge page on, in a mapping of its own. The tensor and its views hold it."""
    mapping = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them: the same memory on small pages
        mapping.madvise(ask)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    begin = -memory.data_ptr() % HUGE_PAGE
    return memory[begin : begin + num_bytes]
