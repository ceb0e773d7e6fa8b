"""`input` of /v1/responses as the messages of a chat.

Items of one turn of the assistant (reasoning, text, calls), which stand beside each other, become one message, as chat
templates know it. Two texts beside each other stay two messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.messages import MAX_MESSAGES
from paceline.server.api.protocol.parts import joined_text, only, text_field, text_parts, wrong

MAX_ITEMS = 2 * MAX_MESSAGES
ROLES = ("user", "assistant", "system", "developer")

_KINDS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_OF_PARTS = ("annotations", "logprobs", "prompt_cache_breakpoint")
_OF_ITEMS = ("id", "status", "phase", "caller", "namespace")  # known, and without effect on the prompt

Message: TypeAlias = dict[str, Any]


def _messages(value: Any) -> list[Message]:
    """Raises RequestError that names the place."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        seen = "an empty list" if value == [] else shown(value)
        raise RequestError("input has no item", param="input", seen=seen, expected="text, or a list of items")
    if len(value) > MAX_ITEMS:
        raise RequestError("too many items", param="input", seen=len(value), expected=f"at most {MAX_ITEMS}")
    messages: list[Message] = []
    last = ""  # the assistant's item before, if it is of this turn
    for index, item in enumerate(value):
        place = f"input[{index}]"
        if not isinstance(item, dict):
            raise wrong(place, item, "an item: an object")
        kind = item.get("type") or ("message" if "role" in item else None)
        if not isinstance(kind, str) or kind not in _ITEMS:
            raise _unknown(kind, place)
        last = _ITEMS[kind](messages, item, place, last)
    return messages


def _message(messages: list[Message], item: Message, place: str, last: str) -> str:
    only(item, place, used=("type", "role", "content"), taken=_OF_ITEMS)
    role = item.get("role")
    if role not in ROLES:
        raise RequestError(
            "a message needs a role", param=f"{place}.role", seen=shown(role), expected=f"one of {', '.join(ROLES)}"
        )
    content = text_parts(item.get("content"), f"{place}.content", _KINDS, taken=_OF_PARTS)
    if role != "assistant":
        messages.append({"role": role, "content": content})
        return ""
    message = _turn(messages, goes_on=last in ("reasoning", "call"))
    message["content"] = message.get("content", "") + joined_text(content)
    return "message"


def _reasoning(messages: list[Message], item: Message, place: str, last: str) -> str:
    only(item, place, used=("type", "content"), taken=("summary", "encrypted_content", *_OF_ITEMS))
    content = item.get("content")
    text = "" if content is None else joined_text(text_parts(content, f"{place}.content", {"reasoning_text": "text"}))
    message = _turn(messages, goes_on=last == "reasoning")
    message["reasoning_content"] = message.get("reasoning_content", "") + text
    return "reasoning"


def _call(messages: list[Message], item: Message, place: str, last: str) -> str:
    only(item, place, used=("type", "call_id", "name", "arguments"), taken=_OF_ITEMS)
    function = {key: text_field(item, key, place) for key in ("name", "arguments")}
    call = {"id": text_field(item, "call_id", place), "type": "function", "function": function}
    _turn(messages, goes_on=last != "").setdefault("tool_calls", []).append(call)
    return "call"


def _output(messages: list[Message], item: Message, place: str, _last: str) -> str:
    only(item, place, used=("type", "call_id", "output"), taken=("name", *_OF_ITEMS))
    content = joined_text(text_parts(item.get("output"), f"{place}.output", _KINDS, taken=_OF_PARTS))
    messages.append({"role": "tool", "tool_call_id": text_field(item, "call_id", place), "content": content})
    return ""


_ITEMS: dict[str, Callable[[list[Message], Message, str, str], str]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _output,
}


def _turn(messages: list[Message], *, goes_on: bool) -> Message:
    """The assistant's message that an item belongs to."""
    if not goes_on:
        messages.append({"role": "assistant"})
    return messages[-1]


def _unknown(kind: Any, place: str) -> RequestError:
    fix = "send the item itself: nothing is stored here" if kind == "item_reference" else "leave it out"
    return RequestError(
        "an item of a kind that is not there",
        param=f"{place}.type",
        seen=shown(kind),
        expected=", ".join(_ITEMS),
        fix=fix,
    )


def _part(key: str, *kinds: str) -> dict[str, Any]:
    properties = {"type": {"enum": list(kinds)}, key: {"type": "string"}}
    return {"type": "object", "properties": properties, "required": ["type", key]}


_PARTS = [_part("text", "input_text", "output_text", "text"), _part("refusal", "refusal")]
_TEXT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": _PARTS}}]}
_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_ITEMS,
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "type": {"const": "message"},
                            "role": {"enum": list(ROLES)},
                            "content": _TEXT,
                        },
                        "required": ["role", "content"],
                    },
                    {
                        "type": "object",
                        "properties": {
                            "type": {"const": "reasoning"},
                            "summary": {"type": "array"},
                            "content": {"type": "array", "items": _part("text", "reasoning_text")},
                        },
                        "required": ["type"],
                    },
                    {
                        "type": "object",
                        "properties": {
                            "type": {"const": "function_call"},
                            "call_id": {"type": "string"},
                            "name": {"type": "string"},
                            "arguments": {"type": "string"},
                        },
                        "required": ["type", "call_id", "name", "arguments"],
                    },
                    {
                        "type": "object",
                        "properties": {
                            "type": {"const": "function_call_output"},
                            "call_id": {"type": "string"},
                            "output": _TEXT,
                        },
                        "required": ["type", "call_id", "output"],
                    },
                ]
            },
        },
    ]
}

Input = Annotated[Any, BeforeValidator(_messages), WithJsonSchema(_SCHEMA)]
