"""A toy model that knows tools and reasoning, and what tests of them share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
from tests.fakes.api_server import VOCAB, ApiServer, api_server
from tests.fakes.raw_asgi import RawCall

from paceline.errors import EngineError
from paceline.server.api import answer
from paceline.server.api.generation import Generation
from paceline.server.api.sse import PING, EventStream

SPECIAL = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TEMPLATE = (
    "{% if tools %}<|start|>tools: {% for t in tools %}{{ t.function.name }} {% endfor %}"
    "{# {'name': ...} between <tool_call> and </tool_call> #}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}: {{ m.get('content', '') }}"
    "{% for c in m.get('tool_calls', []) %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant: {% if think %}<think>\n{% endif %}{% endif %}"
    "{# </think> #}"
)
PLAIN = (
    "{% for m in messages %}<|start|>{{ m.role }}: {{ m.get('content', '') }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How it is outside.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock", "description": "The time."}}
TOOLS = [WEATHER, CLOCK]
BERN = '{"city": "Bern", "days": 2}'
FIRST = f'<tool_call>\n{{"name": "weather", "arguments": {BERN}}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def ids(text: str) -> list[int]:
    """Bytes, and special tokens where a marker stands."""
    for index, mark in enumerate(SPECIAL):
        if mark in text:
            before, _, after = text.partition(mark)
            return [*ids(before), VOCAB + index, *ids(after)]
    return list(text.encode())


def tool_server(
    scripts: dict[int, str] | None = None, *, special: Sequence[str] = SPECIAL, template: str = TEMPLATE, **how: Any
) -> AbstractAsyncContextManager[ApiServer]:
    """`scripts`: answers by seed."""
    known = {seed: ids(text) if special else list(text.encode()) for seed, text in (scripts or {}).items()}
    return api_server(scripts=known, special=special, template=template, max_model_len=2048, num_blocks=2048, **how)


async def failed_after_a_ping(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> bytes:
    """The events of a stream whose engine fails when nothing but pings has come."""
    pinged = asyncio.Event()

    async def news(_: Generation) -> Any:
        await pinged.wait()
        raise EngineError("the engine is gone")

    monkeypatch.setattr(Generation, "news", news)
    monkeypatch.setattr(answer, "EventStream", partial(EventStream, ping_s=0.01))
    call = RawCall(server.app, path, {**body, "stream": True})
    while PING not in call.body:
        await asyncio.sleep(0.001)
    pinged.set()
    await call.end()
    assert call.complete
    return call.body.replace(PING, b"")


def joined(chunks: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Messages by choice, as a client puts them together from a stream."""
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        message = found.setdefault(choice["index"], {"content": "", "reasoning_content": "", "tool_calls": {}})
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] not in message["tool_calls"], "a call has one name"
                function = {"name": part["function"]["name"], "arguments": ""}
                message["tool_calls"][part["index"]] = {"id": part["id"], "type": part["type"], "function": function}
            function = message["tool_calls"][part["index"]]["function"]
            function["arguments"] += part["function"]["arguments"]
        if choice["finish_reason"] is not None:
            message["finish_reason"] = choice["finish_reason"]
    return found


def functions(calls: Any) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    listed = calls.values() if isinstance(calls, dict) else calls
    return [(call["function"]["name"], call["function"]["arguments"]) for call in listed]
