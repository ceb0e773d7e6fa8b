"""What a number was measured on: host, devices, versions, model, git. Stored beside every run.

It describes the load's own host. Where the server is on another machine, only what the server tells is known of that
one; `same_host` says which it is. Nothing secret is read: no environment, no user name, no key.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import paceline

PACKAGES = ("paceline", "numpy", "msgspec", "httpx", "httptools", "scipy", "torch", "vllm", "sglang")
WHOLE_BYTES = 2 << 30  # weights up to here are hashed whole, larger ones by samples
_SAMPLE_BYTES = 1 << 20
_NUM_SAMPLES = 64


def fingerprint(
    url: str = "", *, server: dict[str, Any] | None = None, model_path: str | Path | None = None
) -> dict[str, Any]:
    """Everything this machine tells without rights. `server`: what the server said of itself (version, device, ...);
    `model_path`: folder or file of the model, where it is at hand."""
    host = urlsplit(url).hostname or ""
    found: dict[str, Any] = {
        "host": host_facts(),
        "gpus": gpu_facts(),
        "versions": versions(),
        "python": sys.version.split()[0],
        "git": git_facts(Path(paceline.__file__).parent),
        "clock": clock_facts(),
        "same_host": host in ("127.0.0.1", "::1", "localhost") or host == platform.node(),
    }
    if server:
        found["server"] = server
    if model_path is not None and Path(model_path).exists():
        found["model"] = model_facts(Path(model_path))
    return found


def host_facts() -> dict[str, Any]:
    import psutil

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_name(),
        "arch": platform.machine(),
        "num_logical_cores": os.cpu_count(),
        "num_physical_cores": psutil.cpu_count(logical=False),
        "num_usable_cores": affinity,
        "cpu_limit": _cpu_limit(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": _memory_limit(),
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "system": f"{platform.system()} {platform.release()}",
        "load_1m": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _cpu_name() -> str:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_limit() -> float | None:
    """Cores that the control group grants, None without a limit."""
    words = (_read("/sys/fs/cgroup/cpu.max") or "max").split()
    return None if words[0] == "max" else int(words[0]) / int(words[1])


def _memory_limit() -> int | None:
    text = _read("/sys/fs/cgroup/memory.max") or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes") or "max"
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _turbo() -> bool | None:
    text = _read("/sys/devices/system/cpu/intel_pstate/no_turbo")
    if text is not None:
        return text == "0"
    text = _read("/sys/devices/system/cpu/cpufreq/boost")
    return None if text is None else text == "1"


@cache
def gpu_facts() -> tuple[dict[str, str], ...]:
    """NVIDIA GPUs with driver, memory and power limit; () without the tool or a GPU."""
    if shutil.which("nvidia-smi") is None:
        return ()
    fields = ("name", "driver_version", "memory.total", "power.limit", "pcie.link.gen.current", "clocks.max.sm")
    lines = _run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
    return tuple(
        dict(zip(fields, (word.strip() for word in line.split(",")), strict=False))
        for line in (lines or "").splitlines()
    )


def versions() -> dict[str, str]:
    """Of the packages that matter, as they are installed beside the lab."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_facts(folder: Path) -> dict[str, Any]:
    """Commit of the code, and whether it was changed; {} outside a checkout: an installed package is none of the
    repository that its environment happens to lie in."""
    own = _run(["git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py"])
    commit = _run(["git", "-C", str(folder), "rev-parse", "HEAD"]) if own else None
    if not commit:
        return {}
    changed = _run(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit, "dirty": bool(changed)}


def _run(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def clock_facts() -> dict[str, Any]:
    info = time.get_clock_info("monotonic")
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return {"monotonic": info.implementation, "resolution_s": info.resolution, "source": source}


@cache
def model_facts(path: Path) -> dict[str, Any]:
    """Digests of weights, configuration and tokenizer. Of large weights a digest of samples, and it says so."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    weights = [f for f in files if f.suffix in (".safetensors", ".gguf", ".bin", ".pth")]
    found: dict[str, Any] = {"name": path.name, "weight_bytes": sum(f.stat().st_size for f in weights)}
    sampled = found["weight_bytes"] > WHOLE_BYTES
    if weights:
        found["weights_sha256"] = _digest(weights, sampled)
        found["weights_digest"] = "samples of 1 MiB" if sampled else "whole files"
    for name in ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"):
        for file in files:
            if file.name == name:
                found[f"{name}_sha256"] = _digest([file], sampled=False)
    return found


def _digest(files: list[Path], sampled: bool) -> str:
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as stream:
            if not sampled:
                while block := stream.read(_SAMPLE_BYTES):
                    digest.update(block)
                continue
            for i in range(_NUM_SAMPLES):
                stream.seek(max(0, size - _SAMPLE_BYTES) * i // (_NUM_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()
