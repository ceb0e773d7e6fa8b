"""Compiles the native kernels with the system's C++ compiler. Standard library only: the installer runs this file.

python src/paceline/runtime/kernels/cpu/build.py          after a change to a source file
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"
LIBRARY = HERE / "_native.so"
# The levels of csrc/isa.h. GCC 12 takes what its own AVX-512 functions leave undefined for ours (its bug 105593).
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVXVNNI = (*AVX2, "-mavxvnni")
AVX512 = (
    *AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
)
VNNI512 = (*AVX512, "-mavx512vnni")
AVX512BF16 = (*VNNI512, "-mavx512bf16")
AMX = (*AVX512BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16")
# Source file, and instructions it may use beyond the processor family's own, the least first: where two units hold a
# copy of the same library template the linker keeps the first, and that one must run wherever either does. Some are
# compiled for two levels and put their functions into the namespace of each.
UNITS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("paceline_cpu.cpp", ()),
    ("isa.cpp", ()),
    ("blocks.cpp", ()),
    ("bf16_rows.cpp", ()),
    ("pool.cpp", ()),
    ("ops.cpp", ()),
    ("decoder.cpp", ()),
    ("layers.cpp", ()),
    ("int8.cpp", ()),
    ("int8_avx2.cpp", AVX2),
    ("kv_int8_avx2.cpp", AVX2),
    *((name, (*AVX2, "-DPACELINE_LEVEL=avx2")) for name in ("linear.cpp", "attention.cpp", "elementwise.cpp")),
    ("int8_avxvnni.cpp", AVXVNNI),
    *((name, (*AVX512, "-DPACELINE_LEVEL=avx512")) for name in ("linear.cpp", "attention.cpp", "elementwise.cpp")),
    ("int8_rows_avx512.cpp", AVX512),
    ("int8_vnni512.cpp", VNNI512),
    ("bf16_avx512bf16.cpp", AVX512BF16),
    ("int8_amx.cpp", AMX),
    ("bf16_amx.cpp", AMX),
    ("bf16_many_amx.cpp", AMX),
)
# Without contraction: a product and a sum are rounded apart unless the code says fused, so bits follow the source.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-pthread", "-Wall", "-Wextra")
# For tests that watch every access. Unrolled tiles take many minutes to compile so at -O3; vectors lie where rows do.
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize=alignment,null", "-fno-sanitize-recover=all")


def source_digest() -> str:
    """What the library must have been built from, and how: 16 hex digits over sources, their names, and flags."""
    digest = hashlib.blake2b(repr((FLAGS, UNITS)).encode(), digest_size=8)
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def why_not() -> str:
    """What stands against compiling here; empty if nothing."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"native kernels are for Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    return "" if find_compiler() else "there is no C++ compiler (c++, g++ or clang++)"


def find_compiler() -> str | None:
    """The first of the usual names that is on the path."""
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def compile_library(target: Path = LIBRARY, extra: tuple[str, ...] = ()) -> None:
    """Build the library. Raises RuntimeError with the compiler's words. `target` appears whole or not at all.

    `extra`: flags beside those that the digest stands for, such as SANITIZED."""
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError(why_not())
    digest = f'-DSOURCE_DIGEST="{source_digest()}"'
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(Path(folder) / f"{index}.o") for index in range(len(UNITS))]
        commands = [
            [compiler, *FLAGS, *instructions, *extra, digest, "-c", str(SOURCES / name), "-o", built]
            for (name, instructions), built in zip(UNITS, objects, strict=True)
        ]
        for _ in pool.map(_run, commands):
            pass
        library = Path(folder) / target.name
        _run([compiler, *extra, "-shared", "-pthread", "-o", str(library), *objects])
        # a rename within one folder replaces a library in use without harm; two builds at once do not meet
        beside = target.with_suffix(f".{os.getpid()}.new")
        shutil.copyfile(library, beside)
        beside.replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def is_stale() -> bool:
    """The library is missing, or of other sources. Its digest stands in it as text."""
    return not LIBRARY.exists() or source_digest().encode() not in LIBRARY.read_bytes()


def main(arguments: list[str]) -> int:
    if why_not():
        print(f"no native CPU kernels: {why_not()}", file=sys.stderr)
        return 0 if "--if-stale" in arguments else 1
    if "--if-stale" not in arguments or is_stale():
        compile_library()
        print(LIBRARY)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
