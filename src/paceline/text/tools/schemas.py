"""Schemas of arguments, made ready for a grammar."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import Any

import msgspec

from paceline.errors import RequestError
from paceline.text.grammar.json_schema import plain
from paceline.text.grammar.spec import GrammarSpec
from paceline.text.tools.events import ToolSpec


class Bounds(msgspec.Struct, frozen=True):
    """For strings and lists whose schema has no bound of its own. A model that is small or hot may not end them."""

    max_string_chars: int
    max_items: int


NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_OWN_RULES = ("additionalProperties", "unevaluatedProperties", "minProperties")
_COMBINED = (  # what says more about a value, or about parts of it, than `properties` and `items` do
    *("allOf", "anyOf", "oneOf", "not", "if", "enum", "const", "contains", "patternProperties"),
    *("$ref", "$dynamicRef", "$recursiveRef", "dependentSchemas", "dependentRequired", "dependencies"),
)
_DEFINITIONS = ("$defs", "definitions")
_PLAIN = frozenset(
    ("type", "properties", "required", "additionalProperties", "title", "description", "$schema", *_DEFINITIONS)
)


def arguments_schema(tool: ToolSpec, index: int = 0, bounds: Bounds | None = None) -> dict[str, Any]:
    """The schema of a tool's arguments, of type object, narrowed and, if asked, bounded. Raises RequestError; its
    param names `tools[index]`."""
    schema = tool.parameters
    where = f"tools[{index}].function.parameters"
    if not schema:
        return dict(NO_ARGUMENTS)
    if not isinstance(schema, dict) or schema.get("type", "object") not in ("object", ["object"], ["object", "null"]):
        seen = schema.get("type") if isinstance(schema, dict) else type(schema).__name__
        raise RequestError(
            "parameters of a tool are a JSON schema of an object",
            param=where,
            seen=f"{seen!r:.80}",
            expected='{"type": "object", "properties": {...}}',
        )
    try:
        GrammarSpec(kind="json", value=schema)  # depth, and length of patterns
    except RequestError as error:
        raise RequestError(error.message, param=where, seen=error.seen, expected=error.expected) from None
    schema = plain(schema)
    if _refers_to_definitions_only(schema):  # a part that another refers to may be combined there
        schema = narrowed(schema)
        schema = schema if bounds is None else bounded(schema, bounds)
    return {**schema, "type": "object"}


def narrowed(schema: Any) -> Any:
    """The schema, with no other properties than those it describes where it does not speak of others: in the object
    itself, and in objects that are plainly parts of it. What is combined with other schemas stays as it is, with all
    its parts: another may require of a part what this one does not describe, and nothing would satisfy both then."""
    if not isinstance(schema, dict) or any(key in schema for key in _COMBINED):
        return schema
    changed = dict(schema)
    if isinstance(schema.get("items"), dict):
        changed["items"] = narrowed(schema["items"])
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return changed
    changed["properties"] = {key: narrowed(item) for key, item in properties.items()}
    if not any(key in schema for key in _OWN_RULES) and _requires_own(schema):
        changed["additionalProperties"] = False
    return changed


def bounded(schema: Any, bounds: Bounds) -> Any:
    """The schema with bounds for strings and lists that have none, in the object itself and in what is plainly part of
    it. Strings that are described otherwise (`pattern`, `format`) stay as they are, and so does what is combined with
    other schemas."""
    if not isinstance(schema, dict) or any(key in schema for key in _COMBINED):
        return schema
    changed = dict(schema)
    if isinstance(schema.get("properties"), dict):
        changed["properties"] = {key: bounded(item, bounds) for key, item in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        changed["items"] = bounded(schema["items"], bounds)
    if schema.get("type") == "string" and not any(key in schema for key in ("maxLength", "pattern", "format")):
        changed["maxLength"] = max(bounds.max_string_chars, _least(schema, "minLength"))
    if schema.get("type") == "array" and not any(key in schema for key in ("maxItems", "prefixItems")):
        changed["maxItems"] = max(bounds.max_items, _least(schema, "minItems"))
    return changed


def keyword_schemas(schema: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """The schema of each property by itself, where together they say what the whole does and their names can be
    arguments in Python; else None."""
    properties = schema.get("properties")
    if not schema.keys() <= _PLAIN or schema.get("additionalProperties") is not False:
        return None
    if not isinstance(properties, dict) or not all(map(is_keyword_name, properties)):
        return None
    if not all(isinstance(each, dict) for each in properties.values()):
        return None
    if not _requires_own(schema):
        return None
    if not _refers_to_definitions_only(schema):
        return None
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    return {key: {**each, **shared} for key, each in properties.items()}


def property_names(parameters: Any) -> list[str]:
    """Names of the properties a schema describes, in its order."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return list(properties) if isinstance(properties, dict) else []


def is_keyword_name(name: str) -> bool:
    """May an argument be written `name=` in Python?"""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _requires_own(schema: dict[str, Any]) -> bool:
    """Does it require only properties that it describes? False also where `required` is not what it should be."""
    required = schema.get("required", [])
    return isinstance(required, list) and all(isinstance(key, str) and key in schema["properties"] for key in required)


def _least(schema: dict[str, Any], key: str) -> int:
    value = schema.get(key, 0)
    return value if isinstance(value, int) else 0


def _refers_to_definitions_only(schema: dict[str, Any]) -> bool:
    """Does no part of it refer to another part of it that is in use itself?"""
    return all(ref.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS)) for ref in _references(schema))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(item, str):
                yield item
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
