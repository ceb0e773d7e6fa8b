"""Pieces of an answer in the words of chat completions: `delta` of a chunk, and `message` of a whole answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.text.reading import Message, Piece
from paceline.text.reasoning import Reasoning
from paceline.text.tools import ArgumentsDelta, CallStarted, Text


def message_delta(pieces: Iterable[Piece]) -> dict[str, Any]:
    """One delta for all of them. A call's first part has its id and name, the others more of its arguments; each call
    has one part at most."""
    texts: dict[str, list[str]] = {"reasoning_content": [], "content": []}
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        match piece:
            case Reasoning(text):
                texts["reasoning_content"].append(text)
            case Text(text):
                texts["content"].append(text)
            case CallStarted(index, name, id):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": id, "type": "function", "function": function}
            case ArgumentsDelta(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    delta: dict[str, Any] = {name: "".join(parts) for name, parts in texts.items() if parts}
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta


def whole_message(message: Message, echo: str = "") -> dict[str, Any]:
    """`echo`: text that goes before. Content is null for an answer that is nothing but calls."""
    text, calls = echo + message.text, message.calls
    value: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if message.reasoning:
        value["reasoning_content"] = message.reasoning
    if calls:
        value["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return value
