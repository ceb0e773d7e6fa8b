"""Whether an answer may count: the validators that a class of requests can name.

    not_truncated  the answer ended by itself, or reached the exact length that was asked
    json           the answer is one JSON value (RFC 8259: no NaN, nothing around it but white space)
    schema         the answer satisfies the JSON Schema that the request carried
    tool_call      every call names a tool of the request, with arguments valid against its schema; at least one call

`validate` runs those that apply to a request and leaves the others out. `format` in a schema is an annotation, as the
standard says, and references are resolved inside the schema only: nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from paceline.contracts.workload import PlannedRequest, RenderedPrompt, SloClass
from paceline.errors import ConfigError

VALIDATORS = ("not_truncated", "json", "schema", "tool_call")
_WELL = frozenset({"stop", "tool_calls", "function_call", "eos", "end_turn"})


def validate(
    request: PlannedRequest,
    prompt: RenderedPrompt,
    text: str,
    tool_calls: Sequence[Mapping[str, Any]] | None,
    finish_reason: str | None,
) -> dict[str, bool]:
    """Validator -> passed, for each one that applies. `tool_calls` are those of the OpenAI API: `{"function": {"name",
    "arguments"}}`, or only the inner part. Raises ConfigError where the request's own schema is no schema."""
    found = {"not_truncated": is_whole(finish_reason, exact_length=request.exact_output)}
    body = {**prompt.body, **request.extra}
    tools = body.get("tools")
    if tools:
        found["tool_call"] = are_calls_valid(tool_calls, tools, choice=body.get("tool_choice"), schema=prompt.schema)
    schema = _schema_of(body, None if tools else prompt.schema)
    if schema is not None or _wants_json(body):
        value, is_json = parse(text)
        found["json"] = is_json
        if schema is not None:
            found["schema"] = is_json and satisfies(value, schema)
    return found


def check_names(classes: Iterable[SloClass]) -> None:
    """Raises ConfigError for a validator that does not exist."""
    for each in classes:
        for name in each.validators:
            if name not in VALIDATORS:
                raise ConfigError(
                    f"class {each.name}: no validator of this name", seen=name, expected=" or ".join(VALIDATORS)
                )


def is_whole(finish_reason: str | None, *, exact_length: bool = False) -> bool:
    """Did the answer end by itself? Where its length was forced, reaching the limit is what was asked."""
    return finish_reason in _WELL or (exact_length and finish_reason == "length")


def parse(text: str) -> tuple[Any, bool]:
    """The JSON value of a text, and whether it is one."""
    try:
        return json.loads(text, parse_constant=_no_constant), True
    except (ValueError, RecursionError):
        return None, False


def satisfies(value: Any, schema: Mapping[str, Any] | bool) -> bool:
    """Does a JSON value satisfy a schema (of the draft it names, else 2020-12)? Raises ConfigError for no schema."""
    from referencing.exceptions import Unresolvable

    checker = _checker(json.dumps(schema, sort_keys=True))
    try:
        return bool(checker.is_valid(value))
    except (Unresolvable, RecursionError) as error:
        raise ConfigError(
            "the schema refers to something that is not in it", seen=str(error)[:200], fix="put it under $defs"
        ) from None


def are_calls_valid(
    calls: Sequence[Mapping[str, Any]] | None,
    tools: Sequence[Mapping[str, Any]],
    *,
    choice: Any = None,
    schema: Mapping[str, Any] | None = None,
) -> bool:
    """Is every call of a tool that was offered, with arguments its schema allows, and is there at least one? With
    `choice` "none" there must be no call; with a named tool only that one counts. `schema` is a further demand on the
    arguments."""
    if choice == "none":
        return not calls
    known = {_inner(tool).get("name"): _inner(tool).get("parameters") for tool in tools}
    if isinstance(choice, Mapping):
        wanted = _inner(choice).get("name")
        known = {name: parameters for name, parameters in known.items() if name == wanted}
    return bool(calls) and all(_is_call_valid(_inner(call), known, schema) for call in calls or ())


def _is_call_valid(call: Mapping[str, Any], known: Mapping[Any, Any], schema: Mapping[str, Any] | None) -> bool:
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or name not in known:
        return False
    if arguments in (None, ""):  # a call without arguments
        arguments = "{}"
    value, is_json = parse(arguments) if isinstance(arguments, str) else (arguments, True)
    if not is_json or not isinstance(value, dict):
        return False
    parameters = known[name]
    demands = [each for each in (parameters, schema) if each]
    return all(satisfies(value, each) for each in demands)


def _inner(value: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = value.get("function", value)
    return inner if isinstance(inner, Mapping) else {}


def _schema_of(body: Mapping[str, Any], own: dict[str, Any] | None) -> dict[str, Any] | None:
    if own is not None:
        return own
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        described = form.get("json_schema")
        inner = described.get("schema") if isinstance(described, Mapping) else None
        return inner if isinstance(inner, dict) else None
    return None


def _wants_json(body: Mapping[str, Any]) -> bool:
    form = body.get("response_format")
    return isinstance(form, Mapping) and form.get("type") in ("json_object", "json_schema")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@lru_cache(maxsize=256)
def _checker(schema_text: str) -> Any:
    """A compiled validator. Its registry knows the published drafts and fetches nothing."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    schema = json.loads(schema_text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ConfigError("this is not a JSON Schema", seen=error.message[:200], fix="correct the schema") from None
    return kind(schema, registry=REGISTRY)
