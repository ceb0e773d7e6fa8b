"""Reasoning over HTTP: told apart from the answer, streamed and whole, and counted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.api_server import EOS, events, finishes, run
from tests.pure.server.api.tool_kit import BERN, FIRST, TOOLS, functions, ids, joined, tool_server

from paceline.config.server import ServerConfig

THOUGHT = "Two and two.\nFour?"
SAYS = {
    1: f"<think>\n{THOUGHT}\n</think>\n\nFour. ",
    2: f"{THOUGHT}\n</think>\n\nFour. ",
    3: f"<think>\n{THOUGHT} {FIRST}</think>\n{FIRST}",
    4: "Four.",
}
OPENED = {"chat_template_kwargs": {"think": True}}


@pytest.mark.parametrize(("seed", "fields"), [(1, {}), (2, OPENED), (1, OPENED)])
def test_reasoning_streamed_and_whole(seed: int, fields: dict[str, Any]) -> None:
    """Whether the model opens it, the template has, or both."""

    async def scene() -> None:
        async with tool_server(SAYS) as server:
            answer = (await server.chat(seed=seed, **fields)).json()
            message = answer["choices"][0]["message"]
            assert (message["reasoning_content"], message["content"]) == (THOUGHT, "Four. ")
            num_reasoning = len(ids(SAYS[seed].partition("</think>")[0])) + 1
            assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}
            how = {"stream": True, "stream_options": {"include_usage": True}}
            chunks = events(await server.chat(seed=seed, **fields, **how))
            found = joined(chunks)[0]
            assert (found["reasoning_content"], found["content"]) == (THOUGHT, "Four. ")
            assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}
            assert len(found["tool_calls"]) == 0

    run(scene)


def test_an_answer_without_reasoning_has_none_and_counts_none() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            answer = (await server.chat(seed=4)).json()
            assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Four.", "refusal": None}
            assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}

    run(scene)


def test_calls_within_reasoning_do_not_count() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            message = (await server.chat(seed=3, tools=TOOLS)).json()["choices"][0]["message"]
            assert message["reasoning_content"] == f"{THOUGHT} {FIRST}"
            assert functions(message["tool_calls"]) == [("weather", BERN)]
            assert message["content"] is None

    run(scene)


def test_reasoning_that_is_cut_is_all_there_is() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            answer = (await server.chat(seed=1, max_tokens=9, n=2)).json()
            for choice in answer["choices"]:
                assert choice["message"]["reasoning_content"] == "Two and"
                assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
            assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 18}

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_it_may_be_left_out_and_is_counted_all_the_same(stream: bool) -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            options = {"stream_options": {"include_usage": True}} if stream else {}
            response = await server.chat(seed=1, include_reasoning=False, stream=stream, **options)
            if stream:
                chunks = events(response)
                assert joined(chunks)[0]["content"] == "Four. "
                assert joined(chunks)[0]["reasoning_content"] == ""
                assert finishes(chunks) == {0: "stop"}
                usage = chunks[-1]["usage"]
            else:
                message = response.json()["choices"][0]["message"]
                assert "reasoning_content" not in message
                assert message["content"] == "Four. "
                usage = response.json()["usage"]
            assert usage["completion_tokens_details"]["reasoning_tokens"] > 0

    run(scene)


def test_the_operator_may_turn_it_off() -> None:
    async def scene() -> None:
        async with tool_server(SAYS, special=(), settings=ServerConfig(reasoning_parser="none")) as server:
            answer = (await server.chat(seed=1)).json()
            assert answer["choices"][0]["message"]["content"] == SAYS[1]
            assert "completion_tokens_details" not in answer["usage"]

    run(scene)


def test_a_continued_answer_goes_on_within_its_reasoning_or_has_none() -> None:
    async def scene() -> None:
        async with tool_server(SAYS) as server:
            user = {"role": "user", "content": "hi"}

            async def go_on(text: str, seed: int) -> dict[str, Any]:
                body = {"messages": [user, {"role": "assistant", "content": text}], "continue_final_message": True}
                answer = (await server.post("/v1/chat/completions", {**body, "seed": seed})).json()
                message: dict[str, Any] = answer["choices"][0]["message"]
                return message

            within = await go_on("<think>\nOne. ", 2)
            assert (within["reasoning_content"], within["content"]) == (THOUGHT, "Four. ")
            behind = await go_on("<think>One.</think>It is ", 4)
            assert "reasoning_content" not in behind
            assert behind["content"] == "Four."

    run(scene)


def test_a_grammar_of_the_clients_leaves_no_room_for_it() -> None:
    """Also where the template has opened it: the answer is what the grammar says, as text."""

    async def scene() -> None:
        async with tool_server() as server:
            answer = await server.chat(guided_choice=["yes", "no"], temperature=1.0, seed=1, max_tokens=9, **OPENED)
            message = answer.json()["choices"][0]["message"]
            assert message["content"] in ("yes", "no")
            assert "reasoning_content" not in message

    run(scene)


def test_a_required_call_may_come_behind_reasoning() -> None:
    """Where the template has opened it, the grammar has it end: the scripted model keeps to both."""

    async def scene() -> None:
        said = f"Hm.</think>{FIRST}"
        async with tool_server({1: said}) as server:
            fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 300, **OPENED}
            answer = (await server.chat(seed=1, return_token_ids=True, **fields)).json()
            (choice,) = answer["choices"]
            assert choice["message"]["reasoning_content"] == "Hm."
            assert functions(choice["message"]["tool_calls"]) == [("weather", BERN)]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["token_ids"] == [*ids(said), EOS]

    run(scene)
