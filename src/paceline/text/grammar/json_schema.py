"""Schemas as the grammar library wants them, where JSON schema says the same in more ways than the library reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_VALUES = ("const", "enum", "default", "example", "examples")  # data, and not schemas
STANDARD_FORMATS = frozenset(  # drafts 4 to 2020-12, section 7.3 of the validation vocabulary
    (
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
        *("uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template"),
        *("json-pointer", "relative-json-pointer", "regex"),
    )
)


def plain(schema: Any) -> Any:
    """The schema with 5 for 5.0 where it counts, and without a `format` that no standard names: that is a remark, which
    every text satisfies."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {}
    for key, item in schema.items():
        if key == "format" and isinstance(item, str) and item not in STANDARD_FORMATS:
            continue
        if key in _COUNTS and isinstance(item, float) and item.is_integer():
            item = int(item)
        changed[key] = item if key in _VALUES else plain(item)
    return changed


_IN_LARK = re.compile(r"(?<=%json )\{.*\}$", re.MULTILINE)


def without_patterns(lark: str, is_read: Callable[[str], bool]) -> str:
    """A Lark grammar whose schemas, where they are lenient and end their line, have no patterns but those that
    `is_read`."""

    def rewritten(found: re.Match[str]) -> str:
        try:
            schema = json.loads(found[0])
        except (ValueError, RecursionError):
            return found[0]
        options = schema.get("x-guidance")
        is_lenient = isinstance(options, dict) and options.get("lenient") is True
        return json.dumps(_without_patterns(schema, is_read), ensure_ascii=False) if is_lenient else found[0]

    return _IN_LARK.sub(rewritten, lark)


def _without_patterns(schema: Any, is_read: Callable[[str], bool]) -> Any:
    if isinstance(schema, list):
        return [_without_patterns(each, is_read) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {}
    for key, item in schema.items():
        if key == "pattern" and isinstance(item, str) and not is_read(item):
            continue
        if key == "patternProperties" and isinstance(item, dict):
            item = {pattern: each for pattern, each in item.items() if is_read(pattern)}
        changed[key] = item if key in _VALUES or key == "x-guidance" else _without_patterns(item, is_read)
    return changed
