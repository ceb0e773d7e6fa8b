"""Conversations with tools for templates that know none."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import RequestError
from paceline.text.tools import ToolSpec, system_block, with_calls_as_text, with_tools_told

TOOL = ToolSpec("f", "Does it.", {"type": "object"})
BLOCK = system_block("hermes", [TOOL])
USER: dict[str, Any] = {"role": "user", "content": "Hi"}


def call(arguments: Any = None, name: str = "f") -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": content}


@pytest.mark.parametrize(
    ("first", "content"),
    [
        ([], BLOCK),
        ([{"role": "system", "content": "Be brief."}], f"Be brief.\n\n{BLOCK}"),
        ([{"role": "system", "content": ""}], BLOCK),
        (
            [{"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "."}]}],
            f"Be.\n\n{BLOCK}",
        ),
    ],
)
def test_tools_are_told_in_the_system_message(first: list[Any], content: str):
    assert with_tools_told([*first, USER], "hermes", [TOOL]) == [{"role": "system", "content": content}, USER]


def test_calls_are_text_and_results_are_the_users():
    messages = [
        USER,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call({"a": 1}), call('{"b": 1.50}', "g")]},
        result("one"),
        result([{"type": "text", "text": "two"}]),
        {"role": "assistant", "tool_calls": [call()]},
        result("three"),
        USER,
        {"role": "user", "content": "And?"},
    ]
    assert with_calls_as_text(messages, "json") == [
        USER,
        {
            "role": "assistant",
            "content": 'Let me see.\n[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": 1.50}}]',
        },
        {"role": "user", "content": "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"},
        {"role": "assistant", "content": '{"name": "f", "arguments": {}}'},
        {"role": "user", "content": "<tool_response>\nthree\n</tool_response>\nHi"},  # one message: turns are taken
        {"role": "user", "content": "And?"},
    ]
    assert with_calls_as_text([USER], "hermes") == [USER]
    assert with_calls_as_text([USER, result("x")], "hermes")[-1]["role"] == "user"


def test_arguments_that_are_no_object_are_refused_where_they_stand():
    with pytest.raises(RequestError, match="JSON text of an object") as caught:
        with_calls_as_text([USER, {"role": "assistant", "tool_calls": [call("{")]}], "hermes")
    assert caught.value.param == "messages[1].tool_calls"


def test_tools_are_told_by_the_user_where_there_may_be_no_system_message():
    told = with_tools_told([USER, USER], "hermes", [TOOL], takes_system=False)
    assert told == [{"role": "user", "content": f"{BLOCK}\n\nHi"}, USER]
    own = [{"role": "system", "content": "Be brief."}, USER]  # refused by the template, which says why
    assert with_tools_told(own, "hermes", [TOOL], takes_system=False)[0]["content"] == f"Be brief.\n\n{BLOCK}"
