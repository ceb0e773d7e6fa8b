"""Conversations with tools for models whose template knows none: all of it as plain messages.

Tools are described in the system message (for a template that refuses one, before what the user says first), calls of
earlier turns are text of the assistant, and results come from the user between `<tool_response>` and
`</tool_response>`, as Hermes has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import RequestError
from paceline.text.tools.events import ToolCall, ToolSpec
from paceline.text.tools.writing import serialise, system_block

RESULT, RESULT_END = "<tool_response>", "</tool_response>"

Message = Mapping[str, Any]


def with_tools_told(
    messages: Sequence[Message], format: str, tools: Sequence[ToolSpec], *, takes_system: bool = True
) -> list[Message]:
    """The messages, `tools` described at the end of the system message. Where there is none, one is put first if the
    template `takes_system`; else the user's first message begins with it."""
    block = system_block(format, tools)
    if messages and messages[0]["role"] == "system":
        text = _text(messages[0])
        return [{**messages[0], "content": f"{text}\n\n{block}" if text else block}, *messages[1:]]
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), None)
    if takes_system or first is None:
        return [{"role": "system", "content": block}, *messages]
    told = {**messages[first], "content": f"{block}\n\n{_text(messages[first])}"}
    return [*messages[:first], told, *messages[first + 1 :]]


def with_calls_as_text(messages: Sequence[Message], format: str) -> list[Message]:
    """The messages without `tool_calls` and without the role `tool`: results that come one after the other, and
    what the user says behind them, are one message: some templates want user and assistant to take turns.
    Raises RequestError for a call whose arguments are no JSON object."""
    plain: list[Message] = []
    results: list[str] = []

    def close() -> None:
        if results:
            plain.append({"role": "user", "content": "\n".join(results)})
            results.clear()

    for index, message in enumerate(messages):
        if message["role"] == "tool":
            results.append(f"{RESULT}\n{_text(message)}\n{RESULT_END}")
            continue
        if results and message["role"] == "user":
            message = {**message, "content": "\n".join([*results, _text(message)])}
            results.clear()
        close()
        calls = message.get("tool_calls")
        if not calls:
            plain.append(message)
            continue
        try:
            written = serialise(format, [_call(call) for call in calls])
        except RequestError as error:
            where = f"messages[{index}].tool_calls"
            raise RequestError(error.message, param=where, seen=error.seen, expected=error.expected) from None
        text = _text(message)
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        plain.append({**kept, "content": f"{text}\n{written}" if text else written})
    close()
    return plain


def _call(call: Message) -> ToolCall:
    arguments = call["function"].get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["function"]["name"], text)


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
