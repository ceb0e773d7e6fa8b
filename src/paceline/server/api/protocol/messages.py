"""Chat messages as clients send them, checked and made plain for chat templates.

Roles are system, developer, user, assistant and tool. Content is text or a list of text parts; what is not text is
refused and named. A developer message becomes a system message, which is what templates know. Tool calls of earlier
turns are passed on, their arguments parsed where they are a JSON object, as templates expect.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import msgspec
from pydantic import BeforeValidator, WithJsonSchema

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.body import DEPTH, MAX_DEPTH
from paceline.text.tools.exact_json import nests_within

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")
_COMMON = ("role", "content", "name", "type")  # the last: some clients write "text" or "message"; not used
_KEYS = {
    "assistant": (*_COMMON, "tool_calls", "refusal", "reasoning_content", "reasoning", "annotations"),
    "tool": (*_COMMON, "tool_call_id"),
}
_TEXTS = ("name", "type", "refusal", "reasoning_content", "reasoning", "tool_call_id")


def _wrong(param: str, value: Any, expected: str, message: str = "") -> RequestError:
    return RequestError(message or f"{param} is of the wrong kind", param=param, seen=shown(value), expected=expected)


def _messages(value: Any) -> list[dict[str, Any]]:
    """Plain messages: keys whose value is null are left out. Raises RequestError that names the place."""
    if not isinstance(value, list) or not value:
        seen = "an empty list" if value == [] else shown(value)
        raise RequestError("messages has no message", param="messages", seen=seen, expected="a list of at least one")
    if len(value) > MAX_MESSAGES:
        raise RequestError("too many messages", param="messages", seen=len(value), expected=f"at most {MAX_MESSAGES}")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _wrong(where, message, 'an object: {"role": ..., "content": ...}')
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        words = "it is missing" if role is None else shown(role)
        raise RequestError(
            "a message needs a role", param=f"{where}.role", seen=words, expected=f"one of {', '.join(ROLES)}"
        )
    known = _KEYS.get(role, _COMMON)
    given = {key: item for key, item in message.items() if item is not None}
    for key, item in given.items():
        if key not in known:
            close = difflib.get_close_matches(key[:80], known, n=1)
            raise RequestError(
                f"unknown field {key!r:.80} in a message of role {role}",
                param=f"{where}.{key}"[:200],
                expected=", ".join(known),
                fix=f"did you mean {close[0]}?" if close else "leave it out",
            )
        if key in _TEXTS and not isinstance(item, str):
            raise _wrong(f"{where}.{key}", item, "text")
    plain: dict[str, Any] = {**given, "role": "system" if role == "developer" else role}
    for key in ("annotations", "type"):
        plain.pop(key, None)
    if "content" in given:
        plain["content"] = _content(given["content"], f"{where}.content")
    elif role != "assistant":
        raise RequestError(
            f"a message of role {role} needs content",
            param=f"{where}.content",
            seen="null" if "content" in message else "it is missing",
            expected="text or a list of text parts",
        )
    elif given.get("tool_calls", []) == []:
        plain["content"] = ""  # clients send an empty answer back as it came; templates want to see a text
    if "tool_calls" in given:
        plain["tool_calls"] = _tool_calls(given["tool_calls"], f"{where}.tool_calls")
    return plain


def _content(value: Any, where: str) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong(where, value, "text or a list of text parts")
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(value)]


def _part(part: Any, where: str) -> dict[str, str]:
    if not isinstance(part, dict):
        raise _wrong(where, part, '{"type": "text", "text": "..."}')
    kind, text = part.get("type"), part.get("text")
    if kind != "text":
        raise RequestError(
            "this model takes text only",
            param=where,
            seen=f"a part of type {shown(kind)}",
            expected='{"type": "text", "text": "..."}',
            fix="leave images, audio, video and files out",
        )
    if not isinstance(text, str):
        raise _wrong(f"{where}.text", text, "text")
    for key in part:
        if key not in ("type", "text") and part[key] is not None:
            raise RequestError(
                f"unknown field {key!r:.80} in a text part", param=f"{where}.{key}"[:200], fix="leave it out"
            )
    return {"type": "text", "text": text}


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Calls of an earlier turn."""
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    calls = []
    for index, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(name, str):
            expected = '{"id": ..., "type": "function", "function": {"name": ..., "arguments": "..."}}'
            raise _wrong(f"{where}[{index}]", call, expected)
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, (str, dict)):
            raise _wrong(f"{where}[{index}].function.arguments", arguments, "JSON as text")
        calls.append({**call, "function": {**function, "arguments": _arguments(arguments, f"{where}[{index}]")}})
    return calls


def _arguments(value: str | dict[str, Any], where: str) -> Any:
    """Parsed where they are a JSON object; text that is none stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        parsed = msgspec.json.decode(value)
        deep = not nests_within(parsed, MAX_DEPTH)
    except (msgspec.DecodeError, UnicodeError):
        return value
    except RecursionError:
        deep = True
    if deep:
        param = f"{where}.function.arguments"
        raise RequestError("arguments of a tool call nest too deep", param=param, seen=shown(value), expected=DEPTH)
    return parsed if isinstance(parsed, dict) else value


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_CALL = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
            "required": ["name", "arguments"],
        },
    },
    "required": ["function"],
}
_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]},
            "name": {"type": "string"},
            "tool_calls": {"type": "array", "items": _CALL},
            "tool_call_id": {"type": "string"},
            "reasoning_content": {"type": "string"},
        },
        "required": ["role"],
    },
}

Messages = Annotated[Any, BeforeValidator(_messages), WithJsonSchema(_SCHEMA)]
