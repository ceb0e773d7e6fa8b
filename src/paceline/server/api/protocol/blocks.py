"""Messages of /v1/messages, made of content blocks, as the messages of a chat.

A user's message may carry results of tools: each becomes a message of role tool, before the text that follows it. Marks
for caching (`cache_control`) are taken and not used: prefixes are cached by themselves.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from pydantic import BeforeValidator, WithJsonSchema

from paceline.contracts.request import shown
from paceline.errors import RequestError
from paceline.server.api.protocol.messages import MAX_MESSAGES
from paceline.server.api.protocol.parts import NO_MEDIA, joined_text, objects, only, text_field, text_parts, wrong

MAX_BLOCKS = 4096  # of one message

_TEXT = {"text": "text"}
_TAKEN = ("cache_control", "citations")

Message: TypeAlias = dict[str, Any]


def _system(value: Any) -> str | None:
    """One text, or None for an empty one."""
    return None if value is None else joined_text(text_parts(value, "system", _TEXT, taken=_TAKEN)) or None


def _messages(value: Any) -> list[Message]:
    """Raises RequestError that names the place."""
    if not isinstance(value, list) or not value:
        seen = "an empty list" if value == [] else shown(value)
        raise RequestError("messages has no message", param="messages", seen=seen, expected="a list of at least one")
    messages: list[Message] = []
    for place, message in objects(value, "messages", most=MAX_MESSAGES):
        only(message, place, used=("role", "content"))
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant"):
            raise RequestError(
                "a message needs a role",
                param=f"{place}.role",
                seen=shown(role),
                expected="user or assistant",
                fix="write what the system says into system",
            )
        if isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif role == "user":
            messages += _user(content, f"{place}.content")
        else:
            messages.append(_assistant(content, f"{place}.content"))
    return messages


def _user(content: Any, where: str) -> list[Message]:
    """Text blocks that follow each other are one message."""
    messages: list[Message] = []
    for place, block in objects(content, where, most=MAX_BLOCKS):
        if block.get("type") == "tool_result":
            messages.append(_tool_result(block, place))
            continue
        part = {"type": "text", "text": _text(block, place, "text, tool_result")}
        if messages and messages[-1]["role"] == "user":
            messages[-1]["content"].append(part)
        else:
            messages.append({"role": "user", "content": [part]})
    if not messages:
        raise RequestError("a message has no content", param=where, expected="text, or a list of at least one block")
    return messages


def _tool_result(block: Message, place: str) -> Message:
    only(block, place, used=("type", "tool_use_id", "content"), taken=("is_error", "cache_control", "toolset_name"))
    content = block.get("content")
    text = "" if content is None else joined_text(text_parts(content, f"{place}.content", _TEXT, taken=_TAKEN))
    return {"role": "tool", "tool_call_id": text_field(block, "tool_use_id", place), "content": text}


def _assistant(content: Any, where: str) -> Message:
    message: Message = {"role": "assistant"}
    for place, block in objects(content, where, most=MAX_BLOCKS):
        kind = block.get("type")
        if kind == "tool_use":
            message.setdefault("tool_calls", []).append(_tool_use(block, place))
        elif kind == "thinking":
            only(block, place, used=("type", "thinking"), taken=("signature", "cache_control"))
            message["reasoning_content"] = message.get("reasoning_content", "") + text_field(block, "thinking", place)
        else:
            text = _text(block, place, "text, tool_use, thinking")
            message["content"] = message.get("content", "") + text
    if len(message) == 1:
        message["content"] = ""
    return message


def _tool_use(block: Message, place: str) -> dict[str, Any]:
    only(block, place, used=("type", "id", "name", "input"), taken=("cache_control", "caller", "toolset_name"))
    given = block.get("input")
    if not isinstance(given, dict):
        raise wrong(f"{place}.input", given, "an object: the arguments")
    function = {"name": text_field(block, "name", place), "arguments": msgspec.json.encode(given).decode()}
    return {"id": text_field(block, "id", place), "type": "function", "function": function}


def _text(block: Message, place: str, expected: str) -> str:
    if block.get("type") != "text":
        raise RequestError(
            "a block of a kind that is not there",
            param=f"{place}.type",
            seen=shown(block.get("type")),
            expected=f"one of {expected}",
            fix=NO_MEDIA,
        )
    only(block, place, used=("type", "text"), taken=_TAKEN)
    return text_field(block, "text", place)


def _block(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"type": {"const": kind}, **fields}, "required": ["type", *fields]}


_STRING = {"type": "string"}
_TEXT_BLOCKS = {"anyOf": [_STRING, {"type": "array", "items": _block("text", text=_STRING)}]}
_BLOCKS = {
    "user": [_block("text", text=_STRING), _block("tool_result", tool_use_id=_STRING, content=_TEXT_BLOCKS)],
    "assistant": [
        _block("text", text=_STRING),
        _block("tool_use", id=_STRING, name=_STRING, input={"type": "object"}),
        _block("thinking", thinking=_STRING),
    ],
}
_MESSAGE = [
    {
        "type": "object",
        "properties": {
            "role": {"const": role},
            "content": {"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": {"anyOf": blocks}}]},
        },
        "required": ["role", "content"],
        "additionalProperties": False,
    }
    for role, blocks in _BLOCKS.items()
]
_SCHEMA = {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": {"anyOf": _MESSAGE}}

BlockMessages = Annotated[Any, BeforeValidator(_messages), WithJsonSchema(_SCHEMA)]
System = Annotated[Any, BeforeValidator(_system), WithJsonSchema({"anyOf": [*_TEXT_BLOCKS["anyOf"], {"type": "null"}]})]
