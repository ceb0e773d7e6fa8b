"""One way to write a value as bytes: equal values give equal bytes, on any machine.

Keys are sorted; floats keep nine significant digits, which is far below any measurement's noise and hides the last bits
in which two machines' sums may differ; nan and infinity, which JSON has not, become null. Indented for the reader.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

_DIGITS = 9


def canonical(value: Any) -> bytes:
    """Of any msgspec value: indented JSON with a newline at the end."""
    plain = _rounded(msgspec.to_builtins(value))
    return msgspec.json.format(msgspec.json.encode(plain, order="sorted"), indent=1) + b"\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{_DIGITS}g}")
        return 0.0 if short == 0 else short  # no -0.0
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
