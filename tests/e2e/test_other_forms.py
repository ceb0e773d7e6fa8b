"""The other forms of the API as their users write them: the stock `openai` client, and messages over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel
from tests.fakes.served_toy import Served, serve_toy

KEY = "sk-paceline-test"
TEXT = "Hello there"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


class Box(BaseModel):
    open: bool
    unit: Literal["cm", "mm"]
    width: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy({"max_rows": 8, "max_model_len": 2048}, api_key=[KEY]) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


def chat_text(client: openai.OpenAI, served: Served, **fields: Any) -> str | None:
    answer = client.chat.completions.create(model=served.model, messages=[{"role": "user", "content": TEXT}], **fields)
    return answer.choices[0].message.content


def test_a_response_is_what_a_chat_would_be(client: openai.OpenAI, served: Served) -> None:
    answer = client.responses.create(
        model=served.model, input=TEXT, temperature=0.8, max_output_tokens=12, store=False, extra_body={"seed": 7}
    )
    assert answer.output_text == chat_text(client, served, seed=7, temperature=0.8, max_tokens=12)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert (answer.status == "incomplete") == (answer.incomplete_details is not None)
    assert answer.model_extra is not None
    assert answer.model_extra["store"] is False  # what the client wished, and what is
    items: list[Any] = [{"role": "user", "content": TEXT}, *answer.output, {"role": "user", "content": "And then?"}]
    again = client.responses.create(model=served.model, input=items, max_output_tokens=4)
    assert again.usage is not None
    assert again.usage.input_tokens > answer.usage.input_tokens + answer.usage.output_tokens


def test_a_streamed_response_is_the_same(client: openai.OpenAI, served: Served) -> None:
    with client.responses.stream(
        model=served.model, input=TEXT, temperature=0.8, extra_body={"seed": 8, "stop_token_ids": [2]}
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert deltas
    assert "".join(event.delta for event in deltas) == deltas[-1].snapshot == final.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == chat_text(client, served, seed=8, temperature=0.8)
    assert final.usage is not None


def test_a_response_is_parsed(client: openai.OpenAI, served: Served) -> None:
    how: Any = {"model": served.model, "input": TEXT, "text_format": Box, "extra_body": {"seed": 5}}
    answer = client.responses.parse(**how, max_output_tokens=200)
    assert isinstance(answer.output_parsed, Box)
    with client.responses.stream(**how) as stream:
        assert stream.get_final_response().output_parsed == answer.output_parsed


def test_calls_of_functions(client: openai.OpenAI, served: Served) -> None:
    how: Any = {"model": served.model, "input": TEXT, "tools": [WEATHER], "extra_body": {"seed": 3}}
    how |= {"tool_choice": "required", "parallel_tool_calls": False}
    whole = client.responses.create(**how)
    (call,) = whole.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    with client.responses.stream(**how) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output[0].arguments == call.arguments  # type: ignore[union-attr]
    assert final.output[0].parsed_arguments == json.loads(call.arguments)  # type: ignore[union-attr]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items: list[Any] = [{"role": "user", "content": TEXT}, *final.output, result]
    answer = client.responses.create(model=served.model, input=items, tools=[WEATHER], max_output_tokens=4)
    assert answer.usage is not None
    assert whole.usage is not None
    assert answer.usage.input_tokens > whole.usage.input_tokens


def test_what_is_not_there_is_the_clients_own_error(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=served.model, input=TEXT, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.InternalServerError) as missing:
        client.with_options(max_retries=3).embeddings.create(model=served.model, input=TEXT)
    assert missing.value.status_code == 501
    assert "x-stainless-retry-count" in missing.value.request.headers
    assert missing.value.request.headers["x-stainless-retry-count"] == "0"  # it was told not to ask again


def test_messages_over_http(client: openai.OpenAI, served: Served) -> None:
    body = {"model": served.model, "max_tokens": 12, "seed": 7, "temperature": 0.8}
    body["messages"] = [{"role": "user", "content": TEXT}]
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    whole = httpx.post(f"{served.url}/v1/messages", json=body, headers=headers).raise_for_status().json()
    assert whole["content"][0]["text"] == chat_text(client, served, seed=7, temperature=0.8, max_tokens=12)
    text, kinds = "", []
    with httpx.stream("POST", f"{served.url}/v1/messages", json=body | {"stream": True}, headers=headers) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                kinds.append(event["type"])
                text += event.get("delta", {}).get("text", "")
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert text == whole["content"][0]["text"]
    wrong = httpx.post(f"{served.url}/v1/messages", json=body, headers={"x-api-key": "wrong"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    served.wait_idle()
