"""From bytes to a checked body: JSON once, types field by field, and errors that name the field.

JSON is read by msgspec, which refuses NaN, infinities, numbers beyond float64, broken UTF-8 and half surrogates. How
deep values nest is bounded, so that no template or checker runs out of stack.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.errors import MediaTypeError
from paceline.text.tools.exact_json import nests_within

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_DEPTH = 64  # of nested lists and objects
DEPTH = f"at most {MAX_DEPTH} lists or objects within each other"
LARGE_BYTES = 64 * 1024  # a longer body is parsed off the event loop

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


class Body(BaseModel):
    """Base of all request bodies and their parts: exact types, no unknown fields, null means "not given".

    `REFUSED` maps a field we know and cannot serve to the values that ask for nothing and to the reason; `ALIASES` maps
    another name of a field to the field.
    """

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=(), ser_json_inf_nan="constants")
    PART: ClassVar[str] = ""  # the field whose value it is; empty for a whole body
    ALIASES: ClassVar[dict[str, str]] = {}
    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, data: Any) -> Any:
        return known_fields(data, cls) if isinstance(data, dict) else data


B = TypeVar("B", bound=Body)
Offload = Callable[..., Awaitable[Any]]


async def read_body(request: Request, model: type[B], offload: Offload) -> B:
    """The checked body of an HTTP request. Large ones are parsed by `offload(fn, *args)`, in another thread."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError(
            "the body is not declared as JSON",
            seen=f"Content-Type: {media_type:.80}" if media_type else "no Content-Type",
            expected="Content-Type: application/json",
            fix="add the header (curl: -H 'Content-Type: application/json')",
        )
    data = await request.body()
    if len(data) <= LARGE_BYTES:
        return parse(data, model)
    body: B = await offload(parse, data, model)
    return body


def parse(data: bytes, model: type[B]) -> B:
    return check(parse_json(data), model)


def parse_json(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises RequestError for anything else."""
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise RequestError(
            "the body is not valid JSON",
            seen=f"{len(data)} bytes: {error}" if data else "an empty body",
            expected="one JSON object in UTF-8, with finite numbers",
        ) from None
    if not isinstance(value, dict):
        raise RequestError("the body is not a JSON object", seen=shown(value), expected='{"model": ..., ...}')
    if not nests_within(value, MAX_DEPTH):
        raise _too_deep()
    return value


def _too_deep() -> RequestError:
    return RequestError("the body nests too deep", expected=DEPTH)


def check(data: dict[str, Any], model: type[B]) -> B:
    """The body as its model. Raises RequestError for the first thing that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from None


def known_fields(data: dict[str, Any], model: type[Body]) -> dict[str, Any]:
    """The fields of a body or a part under the names the model has. Raises RequestError for the first that is refused
    or that nobody knows; before the types are looked at, since a list of a million complaints takes its time."""
    prefix = f"{model.PART}." if model.PART else ""
    known: dict[str, Any] = {}
    for name, value in data.items():
        if name in model.REFUSED:
            neutral, why = model.REFUSED[name]
            if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
                param = prefix + name
                raise RequestError(f"{param} is not supported: {why}", param=param, fix=f"leave {name} out")
        elif name in model.ALIASES:
            field = model.ALIASES[name]
            if data.get(field) is not None:
                raise RequestError(f"{name} and {field} are one field", param=prefix + name, fix="send one of them")
            known[field] = value
        elif name in model.model_fields:
            known.setdefault(name, value)
        else:
            raise unknown_field(prefix + name, names_of(model))
    return known


def _refusal(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False)[0]
    param = path_of(first["loc"])
    kind, value = first["type"], first["input"]
    if kind == "missing":
        return RequestError(f"{param} is missing", param=param, fix=f"add {param}")
    expected = _EXPECTED.get(kind) or str(first.get("ctx", {}).get("expected", "")) or first["msg"]
    return RequestError(f"{param} is of the wrong kind", param=param, seen=shown(value), expected=expected)


def unknown_field(param: str, known: list[str]) -> RequestError:
    """The error for a field nobody knows, with the nearest that somebody does."""
    prefix, _, name = param.rpartition(".")
    close = difflib.get_close_matches(name[:80], known, n=1)
    hint = f"did you mean {close[0]}?" if close else "leave it out; fields are listed in docs/reference/api.md"
    return RequestError(
        f"unknown field {name!r:.80}" + (f" in {prefix:.80}" if prefix else ""), param=param[:200], fix=hint
    )


def names_of(model: type[BaseModel]) -> list[str]:
    """Field names as clients write them."""
    return [*model.model_fields, *getattr(model, "REFUSED", ()), *getattr(model, "ALIASES", ())]


def path_of(parts: tuple[int | str, ...]) -> str:
    """messages[0].role from its parts."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def request_schema(model: type[Body]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body this is: a JSON schema without references."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema, parts)}}}}


def _inlined(value: Any, parts: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(parts[value["$ref"].rsplit("/", 1)[1]], parts)
        return {key: _inlined(item, parts) for key, item in value.items()}
    if isinstance(value, list):
        return [_inlined(item, parts) for item in value]
    return value
