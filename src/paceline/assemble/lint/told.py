"""What an artefact tells in free form, taken only as what it should be: of another version, of another program or cut
short, it may be anything. A value of another kind is as one that is not there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Those of a list."""
    if isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, Mapping))


def words(value: Any) -> tuple[str, ...]:
    """Those of a list."""
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list | tuple) else ()


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def count(value: Any) -> int | None:
    """A whole number above 0."""
    found = whole(value)
    return found if found is not None and found > 0 else None


def number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def bare(value: Any) -> Any:
    """Some artefacts keep an option's reason beside its value."""
    return value["value"] if isinstance(value, Mapping) and "value" in value else value
