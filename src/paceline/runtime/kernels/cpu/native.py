"""The native library: found, checked, and its functions typed. `why_not()` says why it does not serve."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from paceline.runtime.kernels.cpu import build
from paceline.runtime.kernels.cpu.build import LIBRARY, source_digest

_AVX2 = 1  # Isa in csrc/isa.h
_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "paceline_cpu_sources": (ctypes.c_char_p, ()),
    "paceline_cpu_isa": (_INT, ()),
    "paceline_cpu_has_isa": (_INT, (_INT,)),
    "paceline_cpu_set_isa": (_INT, (_INT,)),
    "paceline_cpu_isa_name": (ctypes.c_char_p, (_INT,)),
    "paceline_cpu_bf16_products": (_INT, ()),
    "paceline_cpu_pack": (None, (_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT)),
    "paceline_cpu_gather": (_LONG, (_POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _INT)),
    "paceline_cpu_write_kv": (None, (*[_POINTER] * 3, *[_LONG] * 7)),
    "paceline_cpu_write_kv_int8": (None, (*[_POINTER] * 3, *[_LONG] * 7, _INT)),
    "paceline_cpu_linear": (None, (*[_POINTER] * 5, *[_LONG] * 5, _INT, _INT)),
    "paceline_cpu_linear_scratch": (_LONG, (_INT, _LONG, _LONG)),
    "paceline_cpu_rms_norm": (None, (*[_POINTER] * 3, *[_LONG] * 6, _FLOAT, _INT)),
    "paceline_cpu_rope": (None, (*[_POINTER] * 3, *[_LONG] * 6, _INT)),
    "paceline_cpu_gated": (None, (_POINTER, _POINTER, *[_LONG] * 3, _INT, _INT)),
    "paceline_cpu_largest": (None, (*[_POINTER] * 3, *[_LONG] * 3, _INT)),
    "paceline_cpu_draw_bounds": (None, (*[_POINTER] * 5, *[_LONG] * 3, _INT)),
    "paceline_cpu_draw_scale": (None, (*[_POINTER] * 3, *[_LONG] * 3, _INT)),
    "paceline_cpu_keep_allowed": (None, (*[_POINTER] * 4, *[_LONG] * 4, _INT)),
    "paceline_cpu_attention_has_amx": (_INT, (_INT, _INT)),
    "paceline_cpu_attention": (None, (_POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER)),
    "paceline_cpu_scratch_size": (_LONG, (_POINTER, _LONG)),
    "paceline_cpu_run_blocks": (None, (_POINTER, _POINTER)),
    "paceline_cpu_packed_type": (_INT, (_INT, _INT)),
    "paceline_cpu_pack_bf16_rows": (None, (_POINTER, _POINTER, _LONG, _LONG, _LONG)),
    "paceline_cpu_panel_bytes": (_LONG, (_INT, _LONG)),
    "paceline_cpu_pack_blocks": (None, (_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT, _INT)),
}


@cache
def _open() -> tuple[ctypes.CDLL | None, str]:
    if not LIBRARY.exists():
        return None, "it was not compiled when paceline was installed (no C++ compiler, or not Linux on x86-64)"
    try:
        found = ctypes.CDLL(str(LIBRARY))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
        sources = source_digest()
    except (OSError, AttributeError) as error:
        return None, f"{LIBRARY.name} does not load: {error}"
    if found.paceline_cpu_sources().decode() != sources:
        return None, f"{LIBRARY.name} is of other sources; rebuild it: python {build.__file__}"
    if not found.paceline_cpu_has_isa(_AVX2):
        return None, "this CPU has no AVX2, FMA and F16C"
    return found, ""


def why_not() -> str:
    """What keeps native kernels from serving here; empty when they can."""
    return _open()[1]


def library() -> ctypes.CDLL:
    """The library. Ask `why_not` first."""
    found, reason = _open()
    assert found is not None, reason
    return found


def isa() -> str:
    """The level of instructions that kernels use in this process: "avx2" to "amx", see csrc/isa.h."""
    level: int = library().paceline_cpu_isa()
    return _level_names()[level]


def isa_levels() -> list[str]:
    """The levels that this machine has, the lowest first, whatever the cap."""
    return [name for level, name in enumerate(_level_names()) if level and library().paceline_cpu_has_isa(level)]


def multiplies_bf16() -> bool:
    """Whether products of bfloat16 (AVX-512 BF16, or AMX) may be used in this process."""
    return bool(library().paceline_cpu_bf16_products())


def set_isa(cap: str) -> str:
    """Use no level above `cap` in this process from now on; returns the level in use. Not while kernels run.

    Raises ValueError for what is no level's name."""
    names = _level_names()
    if cap not in names[1:]:
        raise ValueError(f"{cap!r} is no level of instructions, expected one of {', '.join(names[1:])}")
    level: int = library().paceline_cpu_set_isa(names.index(cap))
    return names[level]


def best_level(levels: Sequence[str]) -> str:
    """Of the levels that a kernel has code for, the highest in use. One of them must be."""
    names, machine = _level_names(), isa_levels()
    cap = names.index(isa())
    return max((level for level in levels if level in machine and names.index(level) <= cap), key=names.index)


@cache
def _level_names() -> list[str]:
    """By number; the first is "none"."""
    found: list[str] = []
    while (name := library().paceline_cpu_isa_name(len(found))) is not None:
        found.append(name.decode())
    return found
