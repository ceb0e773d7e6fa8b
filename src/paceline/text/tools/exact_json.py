"""JSON as it was written: numbers keep their digits, and only what JSON allows is read."""

from __future__ import annotations

import json
import re
from typing import Any

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


class Digits(str):
    """A number as it was written. It is not worked out: it may be longer than Python reads."""

    @property
    def is_whole(self) -> bool:
        """Has it neither a fraction nor an exponent?"""
        return self.lstrip("-").isdigit()


def loads(text: str) -> Any:
    """The value, numbers as `Digits`. Raises ValueError for text that is not JSON (`NaN` is none), or nests too deep
    for Python."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=Digits, parse_float=Digits)
    except RecursionError:
        raise ValueError("JSON that nests too deep") from None


def nests_within(value: Any, most: int) -> bool:
    """Has a JSON value at most `most` lists or objects within each other? Looks no deeper."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return True
    return not level


def json_text(text: str) -> str:
    """The inside of a JSON string. Halves of surrogate pairs, which no UTF-8 can hold, are escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in quoted):
        quoted = json.dumps(text)
    return quoted[1:-1]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
