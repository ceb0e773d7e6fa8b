from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

# Frees a tensor of 8 MiB, takes another, and prints how many bytes more are mapped by themselves for it.
SECOND_TENSOR = """
import ctypes, sys
import torch
from paceline.runtime.host_allocator import give_back_large_blocks
if sys.argv[1] == "set":
    assert give_back_large_blocks()
libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [(f"f{i}", ctypes.c_size_t) for i in range(10)]
libc.mallinfo2.restype = Info
def mapped():
    return libc.mallinfo2().f4  # hblkhd: bytes in blocks mapped by themselves
torch.ones(8 << 18)
before = mapped()
tensor = torch.ones(8 << 18)
print(mapped() - before)
"""


def mapped_for_second_tensor(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", SECOND_TENSOR, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(getattr(ctypes.CDLL(None), "mallinfo2", None) is None, reason="not glibc 2.33 or later")
@pytest.mark.skipif("MALLOC_MMAP_THRESHOLD_" in os.environ, reason="set from outside")
def test_large_tensors_stay_out_of_the_heap() -> None:
    assert mapped_for_second_tensor("set") >= 8 << 20
    assert mapped_for_second_tensor("not set") < 1 << 20  # what it is for
