"""Tools of a chat request, and what its answer has to do with them.

tools                 functions, in OpenAI's form: {"type": "function", "function": {"name", "description",
                      "parameters", "strict"}}
tool_choice           auto, none, required, or {"type": "function", "function": {"name": ...}}
parallel_tool_calls   false: one call at most
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.schema_check import check_schema
from paceline.text.tools import ToolSpec, arguments_schema

if TYPE_CHECKING:
    from paceline.server.api.protocol.chat import ChatRequest

MAX_TOOLS = 128  # OpenAI's
_MODES = ("auto", "none", "required")
_NAME = re.compile(r"[A-Za-z0-9_./:\-]{1,256}")
NAME_SCHEMA = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
_TOOL_KEYS = ("type", "function")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_FORM = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
_CHOICE_FORM = '"auto", "none", "required" or {"type": "function", "function": {"name": ...}}'


@dataclass(frozen=True)
class Offer:
    """Tools that an answer may call."""

    tools: tuple[ToolSpec, ...]
    plain: list[dict[str, Any]]  # as chat templates take them
    required: bool  # the answer is calls and nothing else
    name: str | None  # of the one that must be called, once
    parallel: bool


def offer_of(body: ChatRequest) -> Offer | None:
    """What a body offers; None without tools, and with `tool_choice` none. Raises RequestError for fields that do not
    go together."""
    choice = body.tool_choice
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    if not body.tools:
        if named is not None or choice == "required":
            raise RequestError(
                "tool_choice needs tools", param="tool_choice", seen=shown(choice), fix="send tools, or leave it out"
            )
        return None
    if choice == "none":
        return None
    specs = tuple(tool_spec(tool) for tool in body.tools)
    if named is not None and all(spec.name != named for spec in specs):
        raise RequestError(
            "tool_choice names no tool of the request",
            param="tool_choice",
            seen=shown(named),
            expected=f"one of {', '.join(spec.name for spec in specs)}"[:400],
        )
    if body.echo:
        raise RequestError(
            "echo and tools exclude each other: calls do not continue a text", param="echo", fix="leave one of them out"
        )
    return Offer(
        tools=specs,
        plain=body.tools,
        required=named is not None or choice == "required",
        name=named,
        parallel=named is None and body.parallel_tool_calls is not False,
    )


def tool_spec(tool: dict[str, Any]) -> ToolSpec:
    """Of a tool that was checked."""
    function = tool["function"]
    return ToolSpec(
        function["name"],
        function.get("description") or "",
        function.get("parameters") or None,
        function.get("strict") is True,
    )


def _wrong(param: str, value: Any, expected: str) -> RequestError:
    return RequestError(f"{param} is of the wrong kind"[:200], param=param[:200], seen=shown(value), expected=expected)


def _tools(value: Any, info: ValidationInfo) -> list[dict[str, Any]] | None:
    """Plain tools: what is null is left out. None for none. Raises RequestError that names the place."""
    param = str(info.field_name)
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise _wrong(param, value, "a list")
    if len(value) > MAX_TOOLS:
        raise RequestError("too many tools", param=param, seen=len(value), expected=f"at most {MAX_TOOLS}")
    names: dict[str, int] = {}
    tools = []
    for index, each in enumerate(value):
        tool = _tool(each, f"{param}[{index}]")
        name = tool["function"]["name"]
        if name in names:
            raise RequestError(
                "two tools have the same name",
                param=f"{param}[{index}].function.name",
                seen=f"{name!r:.80}, also {param}[{names[name]}]",
                expected="different names",
            )
        names[name] = index
        try:
            arguments_schema(tool_spec(tool), index)
        except RequestError as error:
            where = str(error.param).replace("tools", param, 1)
            raise RequestError(error.message, param=where, seen=error.seen, expected=error.expected) from None
        tools.append(tool)
    return tools


def _tool(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, value, _FORM)
    kind = value.get("type", "function")
    if kind != "function":
        raise RequestError(
            "there are tools of type function only",
            param=f"{where}.type",
            seen=shown(kind),
            expected='"function"',
            fix="leave other tools out: the server runs none itself",
        )
    given = _known(value, _TOOL_KEYS, where)
    if not isinstance(given.get("function"), dict):
        raise _wrong(f"{where}.function", given.get("function"), _FORM)
    where = f"{where}.function"
    function = _known(given["function"], _FUNCTION_KEYS, where)
    _check_name(function.get("name"), f"{where}.name")
    if not isinstance(function.get("description", ""), str):
        raise _wrong(f"{where}.description", function["description"], "text")
    if not isinstance(function.get("strict", False), bool):
        raise _wrong(f"{where}.strict", function["strict"], "true or false")
    if "parameters" in function:
        if not isinstance(function["parameters"], dict):
            raise _wrong(f"{where}.parameters", function["parameters"], 'a JSON schema: {"type": "object", ...}')
        check_schema(function["parameters"], f"{where}.parameters")
    return {"type": "function", "function": function}


def _known(value: dict[str, Any], keys: tuple[str, ...], where: str) -> dict[str, Any]:
    given = {key: item for key, item in value.items() if item is not None}
    for key in given:
        if key not in keys:
            raise RequestError(
                f"unknown field {key!r:.80} in a tool",
                param=f"{where}.{key}"[:200],
                expected=", ".join(keys),
                fix="leave it out",
            )
    return given


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            "a tool needs a name" if name is None else "a tool has a name that cannot be called",
            param=where,
            seen="it is missing" if name is None else shown(name),
            expected="1 to 256 letters, digits and _ - . / :",
        )


def _choice(value: Any, info: ValidationInfo) -> Any:
    """A mode, or the named function in its plain form."""
    param = str(info.field_name)
    if value is None or (isinstance(value, str) and value in _MODES):
        return value
    if not isinstance(value, dict) or value.get("type", "function") != "function":
        raise _wrong(param, value, _CHOICE_FORM)
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _wrong(param, value, _CHOICE_FORM)
    return {"type": "function", "function": {"name": name}}


_TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": NAME_SCHEMA,
                "description": {"type": "string"},
                "parameters": {"type": "object"},
                "strict": {"type": "boolean"},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    },
    "required": ["type", "function"],
    "additionalProperties": False,
}
_NAMED_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}

Tools = Annotated[
    Any,
    BeforeValidator(_tools),
    WithJsonSchema({"anyOf": [{"type": "array", "maxItems": MAX_TOOLS, "items": _TOOL_SCHEMA}, {"type": "null"}]}),
]
ToolChoice = Annotated[
    Any,
    BeforeValidator(_choice),
    WithJsonSchema({"anyOf": [{"enum": list(_MODES)}, _NAMED_SCHEMA, {"type": "null"}]}),
]
