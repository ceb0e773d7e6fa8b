"""The native library: found, checked, and its functions typed. `why_not()` says why it does not serve."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from paceline.runtime.kernels.cpu import build
from paceline.runtime.kernels.cpu.build import LIBRARY, source_digest

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "paceline_cpu_sources": (ctypes.c_char_p, ()),
    "paceline_cpu_has_avx2": (_INT, ()),
    "paceline_cpu_has_avx512": (_INT, ()),
    "paceline_cpu_pack": (None, (_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT)),
    "paceline_cpu_gather": (_LONG, (_POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _INT)),
    "paceline_cpu_write_kv": (None, (_POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _LONG, _LONG)),
    "paceline_cpu_write_kv_int8": (None, (*[_POINTER] * 3, *[_LONG] * 5, _INT)),
    "paceline_cpu_linear": (None, (*[_POINTER] * 5, *[_LONG] * 5, _INT, _INT)),
    "paceline_cpu_linear_scratch": (_LONG, (_INT, _LONG, _LONG)),
    "paceline_cpu_rms_norm": (None, (*[_POINTER] * 3, *[_LONG] * 6, _FLOAT, _INT)),
    "paceline_cpu_rope": (None, (*[_POINTER] * 3, *[_LONG] * 6, _INT)),
    "paceline_cpu_gated": (None, (_POINTER, _POINTER, *[_LONG] * 3, _INT, _INT)),
    "paceline_cpu_attention": (None, (_POINTER, _POINTER, _LONG, _POINTER, _LONG, _POINTER)),
    "paceline_cpu_scratch_size": (_LONG, (_POINTER, _LONG)),
    "paceline_cpu_run_blocks": (None, (_POINTER, _POINTER)),
    "paceline_cpu_packed_type": (_INT, (_INT, _INT)),
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
    if not found.paceline_cpu_has_avx2():
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


def has_avx512() -> bool:
    """Whether the processor has AVX-512, which no kernel here uses yet."""
    return bool(library().paceline_cpu_has_avx512())
