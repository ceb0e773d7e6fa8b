"""Calls with tags, as Qwen 3 Coder writes them: text whose meaning is in the tool's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.pure.text.tools.answers import parse

from paceline.text.tools import ArgumentsDelta, CallEnded, CallStarted, Text, ToolSpec, collect, make_parser

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "both": {"type": ["string", "integer"]},
    "kind": {"enum": ["a", 1]},
    "many": {"type": "array"},
    "flag": {"type": "boolean"},
    "other": {"$ref": "#/$defs/x"},
    "part": {"allOf": [{"$ref": "#/$defs/x"}], "description": "It is of type x."},
    "word": {"allOf": [{"type": "string"}, {"minLength": 1}]},
    "object": {"properties": {"x": {}}},
    "map": {"additionalProperties": {"type": "integer"}},
    "list": {"items": {"type": "integer"}},
}
PROPERTIES |= {
    "level": {"$ref": "#/$defs/level"},
    "place": {"$ref": "#/$defs/a~1b%20c"},
    "again": {"$ref": "#/properties/level"},
    "third": {"$ref": "#/$defs/several/anyOf/1"},
    "loop": {"$ref": "#/properties/loop"},
    "far": {"$ref": "https://example.com/x"},
}
DEFINITIONS = {
    "level": {"enum": ["1", "2"]},
    "a/b c": {"type": "object"},
    "several": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}
TOOLS = [ToolSpec("f", parameters={"type": "object", "properties": PROPERTIES, "$defs": DEFINITIONS})]


def call(*parameters: tuple[str, str]) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "12", "12"),
        ("text", '"q"\n\\ {', '"q"\n\\ {'),
        ("text", "\n\nx\n", "\n\nx\n"),
        ("text", "", ""),
        ("text", "a </param b", "a </param b"),
        ("unknown", "12", "12"),
        ("count", "12", 12),
        ("count", " 12 ", 12),
        ("count", "twelve", "twelve"),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "12", "12"),
        ("maybe", "x", "x"),
        ("both", "12", 12),
        ("both", "12.5", "12.5"),
        ("both", "true", "true"),
        ("kind", "1", 1),
        ("kind", "a", "a"),
        ("many", "[1, {}]", [1, {}]),
        ("flag", "True", True),
        ("flag", "false", False),
        ("other", '{"a": NaN}', '{"a": NaN}'),
        ("other", '{"a": 1}', {"a": 1}),
        ("part", '{"a": 1}', {"a": 1}),
        ("level", "1", "1"),
        ("level", "None", "None"),
        ("place", '{"a": 1}', {"a": 1}),
        ("again", "2", "2"),
        ("third", "12", "12"),
        ("loop", "12", 12),
        ("far", "12", 12),
        ("word", "12", "12"),
        ("object", '{"x": 1}', {"x": 1}),
        ("object", "x", "x"),
        ("map", '{"x": 1}', {"x": 1}),
        ("list", "[1, 2]", [1, 2]),
    ],
)
def test_values_are_what_the_schema_says(key: str, text: str, value: Any):
    events = parse("qwen3_coder", [call((key, text))], TOOLS)
    assert parse("qwen3_coder", call((key, text)), TOOLS) == events
    parsed = collect(events)
    assert parsed.text == ""
    assert [json.loads(each.arguments) for each in parsed.calls] == [{key: value}]


def test_numbers_keep_their_digits():
    big = "9" * 5000
    parsed = collect(parse("qwen3_coder", [call(("count", big))], TOOLS))
    assert parsed.calls[0].arguments == f'{{"count": {big}}}'


def test_text_comes_while_it_is_written():
    parser = make_parser("qwen3_coder", TOOLS)
    assert parser.feed("So.<tool_call>\n<function=f") == [Text("So.")]
    assert parser.feed(">\n<parameter=te") == [CallStarted(0, "f"), ArgumentsDelta(0, "{")]
    assert parser.feed('xt>\nab"') == [ArgumentsDelta(0, '"text": "ab\\"')]
    assert parser.feed("\n</para") == []
    assert parser.feed("x\n") == [ArgumentsDelta(0, "\\n</parax")]
    assert parser.feed("</parameter>") == [ArgumentsDelta(0, '"')]
    assert parser.feed("</function>")[0] == ArgumentsDelta(0, "}")
    assert parser.feed("\n</tool_call>") == []
    assert parser.finish() == []


def test_the_outer_tags_may_be_missing():
    text = "<function=f>\n<parameter=count>3</parameter></function>.<function=g></function>"
    events = parse("qwen3_coder", text, TOOLS)
    parsed = collect(events)
    assert [(each.name, each.arguments) for each in parsed.calls] == [("f", '{"count": 3}'), ("g", "{}")]
    assert parsed.text == "."


@pytest.mark.parametrize(
    "text", ["<function=>", "<function=f\n>", "<tool_call>\n<functions>", "<tool_call><function=f</tool_call>"]
)
def test_what_is_no_call_is_text(text: str):
    assert parse("qwen3_coder", text) == [Text(text)]


def test_a_call_that_breaks_is_put_back():
    text = "<tool_call>\n<function=f>\n<parameter=count>\n1\n</parameter>\noh\n</tool_call>"
    events = parse("qwen3_coder", text, TOOLS)
    assert [event.outcome for event in events if isinstance(event, CallEnded)] == ["broken"]
    assert collect(events).text == text
    assert collect(events).calls == []
