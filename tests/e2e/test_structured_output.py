"""Structured output as its users write it: the stock `openai` client against a real server process."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel
from tests.fakes.served_toy import Served, serve_toy

HELLO: Any = [{"role": "user", "content": "Hello there"}]
SLOW = "start: A\nA: /(.*a.{15}.*)/ & /(.*b.{15}.*)/ & ~/(.*c.{12}.*)/"


class Size(BaseModel):
    width: Literal[1, 2, 3]
    unit: Literal["cm", "mm"]


class Box(BaseModel):
    open: bool
    size: Size
    labels: list[Literal["a", "b"]]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_toy({"max_rows": 8}) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_pydantic_model_is_parsed(client: openai.OpenAI, served: Served, temperature: float) -> None:
    answer = client.chat.completions.parse(
        model=served.model, messages=HELLO, response_format=Box, temperature=temperature, seed=5, max_tokens=400
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Box)


def test_a_parsed_stream_is_the_same_object(client: openai.OpenAI, served: Served) -> None:
    how: Any = {"model": served.model, "messages": HELLO, "response_format": Box, "seed": 7, "max_tokens": 400}
    whole = client.chat.completions.parse(**how).choices[0].message.parsed
    with client.chat.completions.stream(**how) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert deltas  # how many depends on how busy the machine is
    assert Box.model_validate_json("".join(deltas)) == whole == final.choices[0].message.parsed


def test_choices_of_one_call_each_keep_to_the_grammar(client: openai.OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model=served.model,
        messages=HELLO,
        n=5,
        seed=1,
        temperature=1.0,
        max_tokens=40,
        extra_body={"structured_outputs": {"regex": "[0-9]{2}(px|em)"}},
    )
    found = [choice.message.content or "" for choice in answer.choices]
    assert all(re.fullmatch("[0-9]{2}(px|em)", text) for text in found), found
    assert len(set(found)) > 1


def test_a_bad_schema_is_a_bad_request(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=served.model,
            messages=HELLO,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "not": {"required": ["a"]}}},
            },
        )
    assert caught.value.param == "response_format"
    assert "strict to false" in caught.value.message


def test_a_grammar_that_is_too_slow_is_refused_while_others_stream(client: openai.OpenAI, served: Served) -> None:
    """It is tried in a process of its own; what runs beside it and grammars that are known do not notice."""
    client.chat.completions.create(
        model=served.model, messages=HELLO, max_tokens=4, extra_body={"guided_choice": ["yes", "no"]}
    )
    refused: list[str] = []

    def slow() -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=served.model, messages=HELLO, extra_body={"guided_grammar": SLOW})
        refused.append(caught.value.message)

    thread = threading.Thread(target=slow)
    thread.start()
    streamed = client.completions.create(
        model=served.model, prompt="x", max_tokens=60, stream=True, extra_body={"ignore_eos": True}
    )
    assert [chunk.choices[0].finish_reason for chunk in streamed][-1] == "length"
    known = client.chat.completions.create(
        model=served.model, messages=HELLO, max_tokens=4, extra_body={"guided_choice": ["yes", "no"]}
    )
    thread.join(60)
    assert known.choices[0].message.content in ("yes", "no")
    assert "too much time" in refused[0]
    served.wait_idle()


def deep_one_of(depth: int) -> dict[str, Any]:
    """Each level is the one below it twice, once with a demand more."""
    parts: dict[str, Any] = {"x0": {"type": "object", "properties": {"a": {"type": "string"}}}}
    for k in range(1, depth + 1):
        below = {"$ref": f"#/$defs/x{k - 1}"}
        parts[f"x{k}"] = {"oneOf": [below, {"allOf": [below, {"required": ["a"]}]}]}
    return {"$defs": parts, "$ref": f"#/$defs/x{depth}"}


def many_one_of(count: int) -> dict[str, Any]:
    """All of `count` choices between two: 2^count combinations."""
    kinds = ("integer", "string")
    pairs = [
        [{"type": "object", "properties": {f"p{i}": {"type": kind}}, "required": [f"p{i}"]} for kind in kinds]
        for i in range(count)
    ]
    return {"allOf": [{"oneOf": pair} for pair in pairs]}


def test_one_of_within_one_of_is_refused_and_no_stream_notices(client: openai.OpenAI, served: Served) -> None:
    how: Any = {"model": served.model, "prompt": "x", "seed": 4, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
    alone = client.completions.create(**how).choices[0].text
    stream = client.completions.create(**how, stream=True)
    chunks = [next(iter(stream))]
    for schema in (deep_one_of(4), deep_one_of(16), many_one_of(13)):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=served.model, messages=HELLO, extra_body={"guided_json": schema})
        assert caught.value.param == "guided_json"
    chunks += list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone
    assert chunks[-1].choices[0].finish_reason == "length"
    served.wait_idle()


def test_many_grammars_at_once_beside_plain_calls(served: Served) -> None:
    """Each answer keeps to its own grammar, whoever runs beside it; and nothing is left over."""
    bodies = [
        {"messages": HELLO, "max_tokens": 60, "seed": i, "structured_outputs": {"regex": f"<{i}>[ab]{{{1 + i % 4}}}"}}
        if i % 3
        else {"messages": HELLO, "max_tokens": 12, "seed": i}
        for i in range(24)
    ]
    found: dict[int, str] = {}

    def ask(index: int) -> None:
        reply = httpx.post(f"{served.url}/v1/chat/completions", json=bodies[index], timeout=60)
        assert reply.status_code == 200, reply.text
        found[index] = reply.json()["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(bodies)
    for index, text in found.items():
        if index % 3:
            assert re.fullmatch(f"<{index}>[ab]{{{1 + index % 4}}}", text), text
    served.wait_idle()


def test_a_client_that_leaves_in_the_middle_frees_everything(served: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 400, "stream": True, "guided_regex": "[ab]{300,}"}
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", f"{served.url}/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status_code == 200
        next(reply.iter_lines())
    served.wait_idle()


def test_the_description_lists_the_fields(served: Served) -> None:
    page = httpx.get(f"{served.url}/openapi.json", timeout=60).json()
    schema = page["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"response_format", "structured_outputs", "guided_json"} <= set(schema["properties"])
    assert "schema" in json.dumps(schema["properties"]["response_format"])
