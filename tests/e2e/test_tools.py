"""Tools as their users write them: the stock `openai` client against a real server process.

The toy model draws at random, so only calls that are required come, and the grammar alone makes them valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from tests.fakes.served_toy import Served, serve_toy

HELLO: Any = [{"role": "user", "content": "How will it be?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["city", "days"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "How it is outside.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
SIZES = {"max_rows": 8, "max_model_len": 4096, "num_blocks": 2048, "max_tokens": 2048}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy(SIZES) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def is_valid(name: str, arguments: str) -> bool:
    value = json.loads(arguments)
    return Draft202012Validator(SCHEMA).is_valid(value) if name == "weather" else (name, value) == ("clock", {})


def test_required_calls_are_valid_and_a_conversation_goes_on(client: openai.OpenAI, served: Served) -> None:
    how: dict[str, Any] = {"model": served.model, "tools": TOOLS, "tool_choice": "required", "temperature": 1.0}
    answer = client.chat.completions.create(messages=HELLO, seed=3, max_tokens=1500, n=2, **how)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls
        for call in choice.message.tool_calls:
            assert call.type == "function"
            assert is_valid(call.function.name, call.function.arguments)
    message = answer.choices[0].message
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls or ()]
    after = client.chat.completions.create(
        model=served.model, messages=[*HELLO, message, *results], tools=TOOLS, temperature=0, max_tokens=8
    )
    assert after.choices[0].finish_reason in ("stop", "length")


def test_a_stream_gives_the_same_call(client: openai.OpenAI, served: Served) -> None:
    how: dict[str, Any] = {
        "model": served.model,
        "messages": HELLO,
        "tools": TOOLS,
        "tool_choice": NAMED,
        "seed": 5,
        "temperature": 1.0,
        "max_tokens": 600,
    }
    (call,) = client.chat.completions.create(**how).choices[0].message.tool_calls or ()
    assert call.type == "function"
    with client.chat.completions.stream(**how) as stream:
        deltas = [e.arguments_delta for e in stream if e.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    (streamed,) = final.message.tool_calls or ()
    assert final.finish_reason == "tool_calls"
    assert "".join(deltas) == streamed.function.arguments == call.function.arguments
    assert streamed.function.name == "weather"
    assert is_valid("weather", call.function.arguments)


def test_a_bad_tool_is_a_bad_request(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=served.model, messages=HELLO, tools=[{"type": "function", "function": {"name": "a b"}}]
        )
    assert caught.value.param == "tools[0].function.name"


def test_the_page_of_the_api_describes_tools(served: Served) -> None:
    schema = httpx.get(f"{served.url}/openapi.json").json()["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    fields = schema["content"]["application/json"]["schema"]["properties"]
    assert {"tools", "tool_choice", "parallel_tool_calls", "include_reasoning"} <= fields.keys()
