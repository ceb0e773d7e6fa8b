"""Tool calls over HTTP: read from what a scripted model says, streamed and whole; required ones held by a grammar."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.fakes.api_server import events, finishes, run
from tests.pure.server.api.tool_kit import (
    BERN,
    CLOCK,
    FIRST,
    PLAIN,
    SECOND,
    TOOLS,
    WEATHER,
    functions,
    joined,
    tool_server,
)

from paceline.config.server import ServerConfig

NAMED = {"type": "function", "function": {"name": "weather"}}
SAYS = {
    1: f"Let me see.\n{FIRST}\n{SECOND}",
    2: FIRST,
    3: "No tool is needed.\n",
    4: '<tool_call>\n{"name": "weather", "arguments": {"city": "Be"]}\n</tool_call>',
}


@pytest.mark.parametrize("special", [(), None], ids=["text", "special"])
@pytest.mark.parametrize("depth", [{}, {"n": 3}], ids=["one", "three"])
def test_calls_streamed_and_whole(special: Any, depth: dict[str, int]) -> None:
    """With markers of one token or of many, each choice has its calls."""

    async def scene() -> None:
        how = {} if special is None else {"special": special}
        async with tool_server(SAYS, **how) as server:
            fields = {"seed": 1, "tools": TOOLS, **depth}
            answer = (await server.chat(**fields)).json()
            chunks = events(await server.chat(**fields, stream=True))
            streamed = joined(chunks)
            assert len(answer["choices"]) == len(streamed) == depth.get("n", 1)
            for choice in answer["choices"]:
                assert choice["finish_reason"] == "tool_calls"
                message = choice["message"]
                assert message["content"] == "Let me see."
                assert functions(message["tool_calls"]) == [("weather", BERN), ("clock", "{}")]
                assert all(call["type"] == "function" and call["id"][:5] == "call_" for call in message["tool_calls"])
                found = streamed[choice["index"]]
                assert (found["content"], found["finish_reason"]) == ("Let me see.", "tool_calls")
                assert functions(found["tool_calls"]) == functions(message["tool_calls"])
            calls = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
            assert len(set(calls)) == len(calls)
            assert sum(c["paceline"]["num_tokens"] for c in chunks) == answer["usage"]["completion_tokens"]
            await server.settled()

    run(scene)


def test_the_first_part_has_the_name_and_the_others_the_arguments() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            chunks = events(await server.chat(seed=2, tools=TOOLS, stream=True))
            parts = [part for c in chunks for part in c["choices"][0]["delta"].get("tool_calls", ())]
            assert parts[0].keys() == {"index", "id", "type", "function"}
            assert parts[0]["function"]["name"] == "weather"
            assert all(part.keys() == {"index", "function"} for part in parts[1:])
            assert all("content" not in c["choices"][0]["delta"] for c in chunks[1:])
            message = (await server.chat(seed=2, tools=TOOLS)).json()["choices"][0]["message"]
            assert message["content"] is None

    run(scene)


def test_text_without_a_call_is_text_to_its_last_space() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            choice = (await server.chat(seed=3, tools=TOOLS)).json()["choices"][0]
            assert choice["message"] == {"role": "assistant", "content": SAYS[3], "refusal": None}
            assert choice["finish_reason"] == "stop"
            chunks = events(await server.chat(seed=3, tools=TOOLS, stream=True))
            assert joined(chunks)[0]["content"] == SAYS[3]
            assert finishes(chunks) == {0: "stop"}

    run(scene)


def test_a_call_that_is_none_is_text_and_the_answer_has_stopped() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            choice = (await server.chat(seed=4, tools=TOOLS)).json()["choices"][0]
            assert choice["message"]["content"] == SAYS[4]
            assert "tool_calls" not in choice["message"]
            assert choice["finish_reason"] == "stop"
            found = joined(events(await server.chat(seed=4, tools=TOOLS, stream=True)))[0]
            assert found["finish_reason"] == "stop"

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_max_tokens_cuts_is_a_beginning_and_says_length(stream: bool) -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            response = await server.chat(seed=2, tools=TOOLS, max_tokens=52, stream=stream)
            if stream:
                found = joined(events(response))[0]
                assert found["finish_reason"] == "length"
                calls = functions(found["tool_calls"])
            else:
                choice = response.json()["choices"][0]
                assert choice["finish_reason"] == "length"
                calls = functions(choice["message"]["tool_calls"])
            ((name, arguments),) = calls
            assert name == "weather"
            assert BERN.startswith(arguments)
            assert 0 < len(arguments) < len(BERN)

    run(scene)


def test_a_stop_string_within_a_call_breaks_it() -> None:
    """The engine counts bytes of text alone, so it finds the string within the arguments."""

    async def scene() -> None:
        async with tool_server(SAYS) as server:
            choice = (await server.chat(seed=2, tools=TOOLS, stop=["Ber"])).json()["choices"][0]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "Ber")
            assert "tool_calls" not in choice["message"]
            assert choice["message"]["content"].endswith('{"city": "')
            whole = (await server.chat(seed=1, tools=TOOLS, stop=["clock"])).json()["choices"][0]
            assert functions(whole["message"]["tool_calls"]) == [("weather", BERN)]
            assert whole["finish_reason"] == "tool_calls"

    run(scene)


def test_one_call_at_most_where_the_client_takes_no_more() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            fields = {"seed": 1, "tools": TOOLS, "parallel_tool_calls": False}
            message = (await server.chat(**fields)).json()["choices"][0]["message"]
            assert functions(message["tool_calls"]) == [("weather", BERN)]
            found = joined(events(await server.chat(**fields, stream=True)))[0]
            assert functions(found["tool_calls"]) == [("weather", BERN)]

    run(scene)


def test_with_the_choice_none_tools_are_neither_shown_nor_read() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            bare = (await server.chat(seed=2)).json()
            none = (await server.chat(seed=2, tools=TOOLS, tool_choice="none")).json()
            assert none["choices"] == bare["choices"]
            assert none["choices"][0]["message"]["content"].startswith("\n{")  # markers are special: they do not show
            assert none["usage"]["prompt_tokens"] == bare["usage"]["prompt_tokens"]
            shown = (await server.chat(seed=2, tools=TOOLS)).json()
            assert shown["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"]

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_and_ids_are_those_of_all_tokens(stream: bool) -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            fields = {"seed": 2, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
            response = await server.chat(**fields, stream=stream)
            choices = [c["choices"][0] for c in events(response)] if stream else response.json()["choices"]
            entries = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
            tokens = [token for c in choices for token in c.get("token_ids", ())]
            assert bytes(b for entry in entries for b in entry["bytes"]).decode() == FIRST + "<|end|>"
            assert len(tokens) == len(entries)

    run(scene)


def is_valid(calls: Any, *, most: int) -> bool:
    known = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
    found = functions(calls)
    return 0 < len(found) <= most and all(
        Draft202012Validator(known[name]).is_valid(json.loads(arguments)) for name, arguments in found
    )


@pytest.mark.parametrize("special", [(), None], ids=["text", "special"])
@pytest.mark.parametrize(("choice", "most"), [("required", 8), (NAMED, 1)], ids=["any", "named"])
def test_required_calls_are_held_by_the_grammar(special: Any, choice: Any, most: int) -> None:
    """The toy model draws at random among what the grammar allows."""

    async def scene() -> None:
        how: dict[str, Any] = {} if special is None else {"special": special}
        async with tool_server(settings=ServerConfig(reasoning_parser="none"), **how) as server:
            for seed in (1, 2):
                fields = {"tools": TOOLS, "tool_choice": choice, "temperature": 1.0, "seed": seed, "max_tokens": 1500}
                whole = (await server.chat(**fields)).json()["choices"][0]
                calls = whole["message"]["tool_calls"]
                assert is_valid(calls, most=most), whole
                assert choice == "required" or functions(calls)[0][0] == "weather"
                assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
                found = joined(events(await server.chat(stream=True, **fields)))[0]
                assert functions(found["tool_calls"]) == functions(calls)
            await server.settled()

    run(scene)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format", "cannot hold tool calls"),
        ({"tools": TOOLS, "guided_regex": "a", "tool_choice": "required"}, "guided_regex", "cannot hold tool calls"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "same name"),
        ({"tools": [CLOCK], "tool_choice": NAMED}, "tool_choice", "names no tool"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": TOOLS, "echo": True}, "echo", "exclude each other"),
    ],
    ids=range(6),
)
def test_what_cannot_be_is_refused_and_named(fields: dict[str, Any], param: str, words: str) -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            answer = await server.chat(seed=99, **fields)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == param
            assert words in error["message"]
            none = await server.chat(seed=99, **{**fields, "tools": TOOLS, "tool_choice": "none", "max_tokens": 4})
            assert none.status_code == 200

    run(scene)


def test_a_schema_that_cannot_be_enforced_harms_no_other_stream() -> None:
    """Strict tools are enforced whole or refused."""
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}

    async def scene() -> None:
        async with tool_server(SAYS) as server:
            other, refused = await asyncio.gather(
                server.chat(seed=1, tools=TOOLS, stream=True),
                server.chat(tools=[WEATHER, tool], tool_choice="required", max_tokens=40),
            )
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "tools[1].function.parameters"
            message = refused.json()["error"]["message"]
            assert message.startswith(
                'this JSON schema cannot be used; seen: Unimplemented keys: ["uniqueItems"]; fix: '
            )
            assert len(joined(events(other))[0]["tool_calls"]) == 2
            tool["function"]["strict"] = False
            taken = await server.chat(tools=[tool], tool_choice="required", max_tokens=4)
            assert taken.status_code == 200
            await server.settled()

    run(scene)


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": BERN}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


async def prompt_of(server: Any, **fields: Any) -> str:
    ids = (await server.post("/tokenize", {"messages": HISTORY, **fields})).json()["tokens"]
    text: str = (await server.post("/detokenize", {"tokens": ids})).json()["prompt"]
    return text


def test_a_template_that_knows_tools_is_given_them() -> None:
    async def scene() -> None:
        async with tool_server() as server:
            assert await prompt_of(server, tools=TOOLS) == (
                "<|start|>tools: weather clock <|end|><|start|>user: Weather?<|end|><|start|>assistant: "
                f'<tool_call>{{"name": "weather", "arguments": {BERN}}}</tool_call><|end|>'
                "<|start|>tool: sunny<|end|><|start|>assistant: "
            )

    run(scene)


def test_a_model_whose_template_knows_none_is_told_and_answers() -> None:
    async def scene() -> None:
        async with tool_server(SAYS, template=PLAIN) as server:
            prompt = await prompt_of(server, tools=TOOLS)
            assert prompt.startswith("<|start|>system: You can call tools.")
            assert '{"name": "clock", "description": "The time."}' in prompt
            assert f'assistant: <tool_call>\n{{"name": "weather", "arguments": {BERN}}}\n</tool_call><|end|>' in prompt
            assert "<|start|>user: <tool_response>\nsunny\n</tool_response><|end|>" in prompt
            assert "tools" not in await prompt_of(server)
            answer = await server.post(
                "/v1/chat/completions", {"messages": HISTORY, "tools": TOOLS, "seed": 1, "max_tokens": 400}
            )
            message = answer.json()["choices"][0]["message"]
            assert functions(message["tool_calls"]) == [("weather", BERN), ("clock", "{}")]

    run(scene)


def test_a_format_that_is_not_known_is_refused_unless_the_operator_names_one() -> None:
    own = "{% if tools %}<arg_key>{% endif %}" + PLAIN

    async def scene() -> None:
        async with tool_server(SAYS, template=own) as server:
            refused = (await server.chat(seed=2, tools=TOOLS)).json()["error"]
            assert refused["param"] == "tools"
            assert "--tool-call-parser" in refused["message"]
            assert (await server.chat(seed=3)).status_code == 200
        async with tool_server(SAYS, template=own, settings=ServerConfig(tool_call_parser="hermes")) as server:
            message = (await server.chat(seed=2, tools=TOOLS)).json()["choices"][0]["message"]
            assert functions(message["tool_calls"]) == [("weather", BERN)]

    run(scene)
