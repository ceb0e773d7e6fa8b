"""Memory of large tensors goes back to the system when they are freed.

glibc maps a large block by itself and unmaps it when it is freed, but each freed block raises the size that counts as
large, up to 32 MiB (mallopt(3), "dynamic mmap threshold"). From then on such blocks lie in the heap, which keeps and
splinters what is freed: an engine whose logits grew with its number of rows held twice the memory that was ever alive,
and no prediction of a peak could hold. A threshold that is set stays.

It is set for the whole process. Not covered: other allocators, which have no such function, and systems without glibc.
"""

from __future__ import annotations

import ctypes

LARGE_BYTES = 4 << 20  # smaller ones stay in the heap, where taking them again costs no page faults
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def give_back_large_blocks(num_bytes: int = LARGE_BYTES) -> bool:
    """Unmap freed blocks of `num_bytes` or more at once, from now on. False where the C library cannot."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # trimming at twice the threshold is what glibc itself keeps to
    return bool(mallopt(_M_MMAP_THRESHOLD, num_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, 2 * num_bytes))


def give_back_free_memory() -> None:
    """Return what is free in the heap to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
