"""The header of a safetensors file, checked against the file's size. Needs no torch.

Layout: header length u64 (little-endian), a JSON object of that many bytes, the data. Each entry gives dtype, shape and
the [begin, end) of its bytes in the data. Source: the safetensors format description.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ModelError, UnsupportedError

DTYPES = {"F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2), "F64": ("float64", 8)}
_MAX_HEADER_BYTES = 100_000_000
_FIX = "download it again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    dtype: str  # as safetensors writes it: F32, BF16, ...
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    num_bytes: int


def read_header(path: Path) -> list[StoredTensor]:
    """All tensors of one file, by name.

    Raises ModelError naming the tensor that is cut off or whose shape and bytes disagree, UnsupportedError for a dtype
    that holds no plain floating-point numbers.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise ModelError(
                    f"{path} is no whole safetensors file",
                    seen=f"{size} bytes",
                    expected=f"a header of {length} bytes" if size >= 8 else "8 bytes at least",
                    fix=_FIX,
                )
            raw = file.read(length)
    except OSError as error:
        raise ModelError(
            f"cannot read {path}", seen=error.strerror, fix="check the path and its permissions"
        ) from error
    try:
        header: Any = json.loads(raw)
    except ValueError as error:
        raise ModelError(f"the header of {path} is no valid JSON", seen=str(error), fix=_FIX) from error
    if not isinstance(header, dict):
        raise ModelError(f"the header of {path} is no JSON object", seen=type(header).__name__, fix=_FIX)
    header.pop("__metadata__", None)
    return [_checked(path, name, header[name], 8 + length, size) for name in sorted(header)]


def _checked(path: Path, name: str, entry: Any, data_start: int, file_size: int) -> StoredTensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"the entry of tensor {name!r} in {path} is unusable", seen=str(entry)[:80], fix=_FIX
        ) from error
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"tensor {name!r} of {path} has a type that paceline does not read",
            seen=dtype,
            expected=f"one of {', '.join(DTYPES)}",
            fix="use the unquantised weights, or a .gguf file",
        )
    num_bytes = DTYPES[dtype][1]
    for n in shape:
        num_bytes *= n
    if begin < 0 or end - begin != num_bytes or min(shape, default=1) < 0:
        raise ModelError(
            f"tensor {name!r} of {path} has a shape that does not match its bytes",
            seen=f"{end - begin} bytes",
            expected=f"{num_bytes} for {dtype} {list(shape)}",
            fix=_FIX,
        )
    if data_start + end > file_size:
        raise ModelError(
            f"tensor {name!r} of {path} lies outside the file",
            seen=f"a file of {file_size} bytes",
            expected=f"{data_start + end} bytes at least",
            fix=_FIX,
        )
    return StoredTensor(name, dtype, shape, data_start + begin, num_bytes)
