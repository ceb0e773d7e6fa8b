"""Is this a JSON schema? A look at the keywords that say what a value is, so that a mistake is named at once.

Not a validator: keywords that are not looked at are left to the grammar, or to nobody. `true` and `false` are schemas.
"""

from __future__ import annotations

from typing import Any

from paceline.contracts.request import shown
from paceline.errors import RequestError

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAX_WHERE = 200  # characters of a place; longer ones are cut
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")


def check_schema(schema: Any, where: str) -> None:
    """Raises RequestError that names the place below `where`. Bodies are bounded in depth before."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _wrong(where, schema, "a JSON schema: an object, true or false")
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not kinds or not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
            raise _wrong(f"{where}.type", schema["type"], f"one of {', '.join(TYPES)}, or a list of them")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _wrong(f"{where}.required", required, "a list of names")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise _wrong(f"{where}.enum", schema["enum"], "a list of values, at least one")
    for key in _BY_NAME:
        if key in schema:
            if not isinstance(schema[key], dict):
                raise _wrong(f"{where}.{key}", schema[key], "an object of schemas")
            for name, each in schema[key].items():
                check_schema(each, _below(where, f"{key}.{name[:MAX_WHERE]}"))
    for key in _LISTS:
        if key in schema:
            if not isinstance(schema[key], list) or not schema[key]:
                raise _wrong(f"{where}.{key}", schema[key], "a list of schemas, at least one")
            for index, each in enumerate(schema[key]):
                check_schema(each, _below(where, f"{key}[{index}]"))
    for key in _SINGLE:
        if key in schema and not (key == "items" and isinstance(schema[key], list)):  # a list: drafts up to 2019
            check_schema(schema[key], _below(where, key))


def _below(where: str, step: str) -> str:
    """Cut at once: names may be long, and each is part of the place of all below it."""
    return f"{where}.{step}"[:MAX_WHERE]


def _wrong(where: str, value: Any, expected: str) -> RequestError:
    return RequestError("this is no JSON schema", param=where[:MAX_WHERE], seen=shown(value), expected=expected)
