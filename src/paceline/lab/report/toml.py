"""Plain values as TOML, for specs that a reader copies out of a page. What TOML has no word for (None) is left out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_of(values: Mapping[str, Any]) -> str:
    """Scalars first, then a table for each mapping and an array of tables for each list of mappings."""
    return "\n".join(_table(values, ())).strip() + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    tables: list[str] = []
    for key, value in values.items():
        inner = (*path, _key(str(key)))
        if isinstance(value, Mapping) and not path:
            tables += ["", f"[{'.'.join(inner)}]", *_table(value, inner)]
        elif (
            isinstance(value, list | tuple) and value and not path and all(isinstance(item, Mapping) for item in value)
        ):
            for item in value:
                tables += ["", f"[[{'.'.join(inner)}]]", *_table(item, inner)]
        elif value is not None:
            lines.append(f"{_key(str(key))} = {_value(value)}")
    return [*lines, *tables]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(key))} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value if item is not None)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value).replace("infinity", "inf")
    if isinstance(value, int):
        return str(value)
    return _text(str(value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """A JSON string is a TOML string, once DEL is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
