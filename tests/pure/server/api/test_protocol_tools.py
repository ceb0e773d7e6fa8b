"""Tools, tool_choice and what goes with them: what is taken, and what is refused by place."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import RequestError
from paceline.server.api.protocol import ChatRequest, schema_check
from paceline.server.api.protocol.body import check
from paceline.server.api.protocol.tokens import TokenizeRequest
from paceline.server.api.protocol.tools import MAX_TOOLS
from paceline.text.tools import ToolSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tool(name: Any = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def offer(**fields: Any) -> Any:
    return check({"messages": [{"role": "user", "content": "a"}], **fields}, ChatRequest).offer()


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_tools_are_taken_as_they_are():
    plain = [tool(description="Does it.", parameters=SCHEMA, strict=True), tool("g.h:i/j-k_1")]
    found = offer(tools=[*plain[:1], {**plain[1], "function": {**plain[1]["function"], "description": None}}])
    assert found.plain == plain
    assert found.tools == (ToolSpec("f", "Does it.", SCHEMA, True), ToolSpec("g.h:i/j-k_1"))
    assert (found.required, found.name, found.parallel) == (False, None, True)


@pytest.mark.parametrize(
    ("choice", "required", "name"),
    [(None, False, None), ("auto", False, None), ("required", True, None), (named("f"), True, "f")],
)
def test_choices(choice: Any, required: bool, name: str | None):
    found = offer(tools=[tool(), tool("g")], tool_choice=choice)
    assert (found.required, found.name, found.parallel) == (required, name, name is None)
    assert not offer(tools=[tool()], tool_choice=choice, parallel_tool_calls=False).parallel


def test_nothing_is_offered_without_tools_or_with_the_choice_none():
    for tools in (None, []):
        for choice in (None, "auto", "none"):
            assert offer(tools=tools, tool_choice=choice) is None
    assert offer(tools=[tool()], tool_choice="none") is None


@pytest.mark.parametrize("choice", ["required", named("f")])
def test_what_must_be_called_must_be_there(choice: Any):
    with pytest.raises(RequestError, match="tool_choice needs tools") as caught:
        offer(tool_choice=choice)
    assert caught.value.param == "tool_choice"
    with pytest.raises(RequestError, match="names no tool") as caught:
        offer(tools=[tool("g")], tool_choice=named("f"))
    assert caught.value.param == "tool_choice"
    assert "g" in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        ("f", "tools"),
        ([1], "tools[0]"),
        ([tool(), {"type": "web_search"}], "tools[1].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}, "name": "f"}], "tools[0].name"),
        ([tool(x=1)], "tools[0].function.x"),
        ([tool(None)], "tools[0].function.name"),
        ([tool("")], "tools[0].function.name"),
        ([tool("a b")], "tools[0].function.name"),
        ([tool("f\n")], "tools[0].function.name"),
        ([tool("f" * 257)], "tools[0].function.name"),
        ([tool(7)], "tools[0].function.name"),
        ([tool(), tool("g"), tool()], "tools[2].function.name"),
        ([tool(f"f{i}") for i in range(MAX_TOOLS + 1)], "tools"),
        ([tool(description=1)], "tools[0].function.description"),
        ([tool(strict="yes")], "tools[0].function.strict"),
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters"),
        ([tool(parameters={"type": "objekt"})], "tools[0].function.parameters.type"),
        ([tool(parameters={"type": []})], "tools[0].function.parameters.type"),
        ([tool(parameters={"properties": ["a"]})], "tools[0].function.parameters.properties"),
        ([tool(parameters={"properties": {"a": 1}})], "tools[0].function.parameters.properties.a"),
        ([tool(parameters={"properties": {"a": {"type": "any"}}})], "tools[0].function.parameters.properties.a.type"),
        ([tool(parameters={"required": "a"})], "tools[0].function.parameters.required"),
        (
            [tool(parameters={"properties": {"a": {"items": {"enum": {}}}}})],
            "tools[0].function.parameters.properties.a.items.enum",
        ),
        ([tool(parameters={"anyOf": [True, 3]})], "tools[0].function.parameters.anyOf[1]"),
        ([tool(parameters={"anyOf": {}})], "tools[0].function.parameters.anyOf"),
        ([tool(parameters={"$defs": {"A": None}})], "tools[0].function.parameters.$defs.A"),
        ([tool(parameters={"properties": {"a": {"pattern": "x" * 20000}}})], "tools[0].function.parameters"),
    ],
)
def test_what_is_wrong_is_named_by_place(tools: Any, param: str):
    with pytest.raises(RequestError) as caught:
        offer(tools=tools)
    assert caught.value.param == param
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    "choice",
    ["any", 1, {}, {"type": "function"}, {"type": "allowed_tools"}, {"type": "function", "function": {"name": 1}}],
)
def test_choices_of_the_wrong_kind(choice: Any):
    with pytest.raises(RequestError, match="tool_choice is of the wrong kind") as caught:
        offer(tools=[tool()], tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_the_older_form_says_what_to_send_instead():
    for field, value in (("functions", [{"name": "f"}]), ("function_call", "auto")):
        with pytest.raises(RequestError, match=f"{field} is not supported.*older form") as caught:
            offer(**{field: value})
        assert caught.value.param == field


def test_echo_and_tools_exclude_each_other():
    with pytest.raises(RequestError, match="exclude each other") as caught:
        offer(tools=[tool()], echo=True)
    assert caught.value.param == "echo"
    assert offer(tools=[tool()], echo=True, tool_choice="none") is None


def test_tokenize_takes_tools_of_a_conversation_only():
    check({"messages": [{"role": "user", "content": "a"}], "tools": [tool()]}, TokenizeRequest).check()
    with pytest.raises(RequestError, match="in a conversation only") as caught:
        check({"prompt": "a", "tools": [tool()]}, TokenizeRequest).check()
    assert caught.value.param == "tools"


def test_the_place_of_what_is_checked_stays_short(monkeypatch: pytest.MonkeyPatch):
    """Else a long name would be copied for each of the schemas below it."""
    places: list[str] = []
    check_one = schema_check.check_schema

    def noted(schema: Any, where: str) -> None:
        places.append(where)
        check_one(schema, where)

    monkeypatch.setattr(schema_check, "check_schema", noted)
    below = {"properties": {"b": {"anyOf": [True]}}, "not": True}
    check_one({"properties": {"a" * 5000: below}, "items": below}, "tools[0]")
    assert len(places) == 8
    assert max(map(len, places)) <= schema_check.MAX_WHERE
