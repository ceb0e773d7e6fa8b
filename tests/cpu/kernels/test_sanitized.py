"""The native kernels' tests again, on a library that AddressSanitizer and UndefinedBehaviorSanitizer watch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from paceline.runtime.kernels.cpu import build

ROOT = Path(__file__).parents[3]
WATCHED = [
    *("test_native_attention.py", "test_attention_amx.py", "test_native_blocks.py", "test_native_linear.py"),
    *("test_elementwise.py", "test_kv_write.py", "test_kv_int8.py"),
    *("test_isa.py", "test_native_int8.py", "test_native_int8_levels.py", "test_native_bf16.py"),
]
# Python and torch are not watched and free at exit what they please. The runtime must be loaded before them.
RUN = {"ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}


def _runtime() -> str:
    """Path of gcc's address sanitizer; empty without one."""
    compiler = build.find_compiler()
    if build.why_not() or compiler is None:
        return ""
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return found.stdout.strip() if Path(found.stdout.strip()).is_absolute() else ""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package whose library is watched."""
    folder = tmp_path_factory.mktemp("sanitized")
    copy = folder / "paceline"
    shutil.copytree(Path(paceline.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "_native.so"))
    build.compile_library(copy / build.LIBRARY.relative_to(Path(paceline.__file__).parent), build.SANITIZED)
    return folder


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **RUN,
        "LD_PRELOAD": _runtime(),
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "PYTHONMALLOC": "malloc",  # so that reads behind a Python buffer are seen too
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


needs_sanitizer = pytest.mark.skipif(not _runtime(), reason="no compiler with an address sanitizer")


@needs_sanitizer
@pytest.mark.long
@pytest.mark.parametrize("name", WATCHED)
def test_kernels_read_and_write_only_what_is_theirs(watched: Path, name: str) -> None:
    options = ("-x", "-m", "not long", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers")
    done = _run(watched, "-m", "pytest", *options, f"tests/cpu/kernels/{name}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    assert " passed" in done.stdout.splitlines()[-1], done.stdout[-2000:]


@needs_sanitizer
@pytest.mark.long
def test_a_read_past_the_end_is_found(watched: Path) -> None:
    """The watch is on: a table of ids shorter than its count says is reported."""
    script = """
import ctypes
from paceline.runtime.kernels.cpu.native import library
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
ids, rows = libc.malloc(8), libc.malloc(4096)
ctypes.memset(ids, 0, 8)
weight = libc.malloc(16 * 16 * 4)
library().paceline_cpu_gather(weight, ids, rows, 4, 16, 16, 0)
"""
    done = _run(watched, "-c", script)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
