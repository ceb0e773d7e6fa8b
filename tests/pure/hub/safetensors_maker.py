"""Small safetensors files byte by byte, so that tests can also make broken ones."""

from __future__ import annotations

import json
from typing import Any

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1}


def safetensors_bytes(tensors: dict[str, tuple[str, tuple[int, ...], bytes]], **entry_changes: Any) -> bytes:
    """`tensors`: name -> (dtype, shape, data). `entry_changes` overwrite the header entries of all tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        header[name] |= entry_changes
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
