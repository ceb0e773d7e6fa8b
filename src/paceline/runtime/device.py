"""What the device is and how much of it is free, measured: the numbers profiles and the memory ledger start from.

CPU memory is the smallest of the machine's RAM and every cgroup limit above this process (v1 and v2); what is free is
the smallest of MemAvailable and each limit minus its usage, where page cache the kernel can drop counts as free. Rates
come from short timed runs (probe.py). Linux is read through /proc and /sys/fs/cgroup; elsewhere psutil answers and
limits of containers are not seen.

Not covered: memory bandwidth per NUMA node, clock changes after the probe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import psutil
import torch

from paceline.contracts.specs import DeviceSpec
from paceline.errors import ConfigError
from paceline.runtime.probe import best_rates

NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a huge number
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class MemoryReading(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a process may use on a device."""

    total_bytes: int  # at most, its own use included
    available_bytes: int  # free for it now
    source: str  # what set the tighter bound


class CgroupMemory(msgspec.Struct, frozen=True, kw_only=True):
    limit_bytes: int
    usage_bytes: int  # without page cache that can be dropped
    path: str


def choose_device(wanted: str) -> Literal["cpu", "cuda"]:
    """`auto`, `cpu` or `cuda` to what there is. Raises ConfigError when CUDA was asked for and is not there."""
    if wanted == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise ConfigError("there is no CUDA device", seen="cuda", expected="auto or cpu", fix="leave device at auto")
    return "cpu"


def choose_dtype(wanted: str, kind: str, *, cpu_flags: frozenset[str] | None = None) -> tuple[str, str]:
    """The compute type and why. `auto`: bfloat16 where the device multiplies it natively, else float32.

    By instruction set rather than by timing, so that the same machine always computes the same numbers.
    """
    if wanted != "auto":
        return wanted, "set"
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bfloat16", "native on this GPU") if native else ("float16", "this GPU has no bfloat16")
    flags = read_cpu_flags() if cpu_flags is None else cpu_flags
    found = sorted(flags & {"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
    if found:
        return "bfloat16", f"this CPU multiplies it natively ({', '.join(found)})"
    return "float32", "this CPU has no bfloat16 products (avx512_bf16, amx_bf16 or bf16): emulated ones are slower"


def probe_device(kind: Literal["cpu", "cuda"], dtype: str, *, num_threads: int | None = None) -> DeviceSpec:
    """Measure the device, in about a third of a second. `num_threads` as torch will use them (CPU)."""
    torch_dtype = DTYPES[dtype]
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(0)
        name, cores = properties.name, properties.multi_processor_count
    else:
        name, cores = cpu_name(), usable_cores()
    before = torch.get_num_threads()
    if kind == "cpu":
        torch.set_num_threads(num_threads or cores)
    try:
        flops, bytes_per_s = best_rates([_product(kind, torch_dtype), _read(kind)])
    finally:
        torch.set_num_threads(before)
    return DeviceSpec(
        kind=kind,
        name=name,
        memory_bytes=device_memory(kind).total_bytes,
        num_cores=cores,
        gflops=flops / 1e9,
        memory_gbps=bytes_per_s / 1e9,
        source="measured",
    )


def use_threads(num_threads: int | None) -> int:
    """Let torch compute with this many threads; None: one per usable core. Returns the number."""
    count = num_threads or usable_cores()
    torch.set_num_threads(count)
    return count


def device_memory(kind: Literal["cpu", "cuda"]) -> MemoryReading:
    """Total and free bytes of the device for this process, now."""
    if kind == "cuda":
        free, total = torch.cuda.mem_get_info()
        reusable = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return MemoryReading(total_bytes=total, available_bytes=free + reusable, source="driver")
    machine = psutil.virtual_memory()
    return smallest_memory(machine.total, machine.available, cgroup_memory())


def smallest_memory(total: int, available: int, cgroups: list[CgroupMemory]) -> MemoryReading:
    """Fold the machine's memory and the cgroups' limits into what a process may use."""
    source = "MemAvailable"
    for cgroup in cgroups:
        total = min(total, cgroup.limit_bytes)
        free = max(0, cgroup.limit_bytes - cgroup.usage_bytes)
        if free < available:
            available, source = free, f"cgroup limit of {cgroup.path}"
    return MemoryReading(total_bytes=total, available_bytes=available, source=source)


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may run on: its affinity mask, or fewer by a cgroup quota (rounded up)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in _cgroup_cpu(root):
        cores = min(cores, max(1, -(-quota // period)))
    return cores


def cgroup_memory(root: Path = Path("/")) -> list[CgroupMemory]:
    """Every memory limit above this process, v1 and v2. Empty where there is none."""
    found = []
    for folder, version in _cgroup_folders(root, "memory"):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, usage = _read_int(folder / names[0]), _read_int(folder / names[1])
        if limit is None or usage is None or limit >= NO_LIMIT:
            continue
        droppable = _read_stat(folder / "memory.stat", "inactive_file" if version == 2 else "total_inactive_file")
        found.append(CgroupMemory(limit_bytes=limit, usage_bytes=max(0, usage - droppable), path=str(folder)))
    return found


def _cgroup_cpu(root: Path) -> Iterator[tuple[int, int]]:
    for folder, version in _cgroup_folders(root, "cpu"):
        if version == 2:
            words = (_read_text(folder / "cpu.max") or "max 100000").split()
            quota, period = (-1 if words[0] == "max" else int(words[0])), int(words[1])
        else:
            quota = _read_int(folder / "cpu.cfs_quota_us") or -1
            period = _read_int(folder / "cpu.cfs_period_us") or 100_000
        if quota > 0:
            yield quota, period


def _cgroup_folders(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """This process's cgroup folders for a controller, from its own up to the root, with the version.

    Inside a container the path of /proc/self/cgroup may not exist below the mount: then the mount itself is the
    process's cgroup. A parent's limit binds too.
    """
    for line in (_read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        version = 1 if controllers else 2
        folder = base / path.lstrip("/")
        if not folder.is_dir():
            folder = base
        while folder.is_dir():
            yield folder, version
            if folder == base:
                break
            folder = folder.parent


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    """None where the file is missing or says "max"."""
    text = (_read_text(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    for line in (_read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def read_cpu_flags() -> frozenset[str]:
    """Instruction set names of /proc/cpuinfo; empty where there is none."""
    for line in (_read_text(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cpu_name() -> str:
    for line in (_read_text(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "cpu"


def process_rss() -> int:
    """Resident bytes of this process now."""
    return int(psutil.Process().memory_info().rss)


def _run(kind: str, compute: Callable[[], object]) -> Callable[[], object]:
    """`compute`, and on a GPU the wait for it."""

    def and_wait() -> None:
        compute()
        torch.cuda.synchronize()

    return and_wait if kind == "cuda" else compute


def _product(kind: str, dtype: torch.dtype) -> tuple[Callable[[], object], float]:
    """A product of [rows, size] x [size, size], and its operations.

    Short on a CPU: the shorter, the likelier it is that nobody else takes one of its threads meanwhile.
    """
    rows, size = (4096, 4096) if kind == "cuda" else (64, 1024)
    x = torch.ones(rows, size, dtype=dtype, device=kind)
    w = torch.ones(size, size, dtype=dtype, device=kind)
    return _run(kind, lambda: torch.nn.functional.linear(x, w)), 2.0 * rows * size * size


def _read(kind: str) -> tuple[Callable[[], object], float]:
    """The sum of an array larger than the caches, and its bytes."""
    x = torch.ones((512 if kind == "cuda" else 64) << 18, dtype=torch.float32, device=kind)
    return _run(kind, x.sum), float(x.numel() * 4)
