"""Threads of native kernels and of torch, which are not the same ones.

Native kernels share work over a pool of their own; torch has OpenMP's threads, and those spin for a while after each
parallel region before they sleep. Where a step alternates between the two, OpenMP's idle threads take from the cores on
which the pool works: decoding one stream took 1.4 times as long. So around a step that is native, torch computes alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_here = threading.local()


def kernel_threads() -> int:
    """How many threads a native kernel may use, the caller included."""
    count: int | None = getattr(_here, "count", None)
    return torch.get_num_threads() if count is None else count


@contextmanager
def torch_alone() -> Iterator[None]:
    """Inside, torch uses the calling thread only; native kernels keep the number of threads that torch had."""
    before, count = getattr(_here, "count", None), torch.get_num_threads()
    _here.count = count if before is None else before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        _here.count = before
