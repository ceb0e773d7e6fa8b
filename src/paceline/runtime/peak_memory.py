"""How much memory a piece of work took at its worst moment, above what was held before.

Linux keeps a high-water mark of resident memory that writing 5 to /proc/self/clear_refs resets; CUDA's allocator keeps
its own. Where neither can be read the answer is None, never a guess.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(slots=True)
class Peak:
    """Filled in when the `with` block ends."""

    num_bytes: int | None = None  # None: this system does not say


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {field}")


def _give_back_free_memory() -> None:
    """Ask the allocator for what it only keeps, so that later work cannot hide in it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure the block. On a CPU: resident bytes; on CUDA: bytes allocated through torch (not yet run on a GPU)."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.num_bytes = torch.cuda.max_memory_allocated(device) - before
        return
    try:
        _give_back_free_memory()
        _CLEAR_REFS.write_text("5")
        before = _status_bytes("VmRSS")
    except OSError:
        yield peak
        return
    yield peak
    peak.num_bytes = max(0, _status_bytes("VmHWM") - before)
