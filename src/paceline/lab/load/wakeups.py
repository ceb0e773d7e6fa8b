"""Asks Linux to let this thread run as soon as it wakes, where it shares cores with the server under test.

A thread that wakes waits until those that run have had their slice: some milliseconds, which would be counted as the
client's lag. One whose own slice is shorter goes first (Linux 6.12 on; older kernels take no notice). It gets no more
of the processor for it, and needs no privilege.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

SLICE_NS = 100_000  # the least the kernel takes
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


class _SchedAttr(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),  # of the ordinary policy: the slice
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def run_at_once() -> bool:
    """Whether the kernel took it. Its niceness stays; a thread of another policy than the usual one is left alone."""
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    size = ctypes.sizeof(_SchedAttr)
    wanted = _SchedAttr(size=size, policy=os.SCHED_OTHER, nice=os.getpriority(os.PRIO_PROCESS, 0), runtime=SLICE_NS)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(ctypes.c_long(number), ctypes.c_int(0), ctypes.byref(wanted), ctypes.c_uint(0)) == 0)
