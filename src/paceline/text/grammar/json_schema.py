"""Schemas as the grammar library wants them, where JSON schema says the same in more ways than the library reads."""

from __future__ import annotations

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
