"""Calls as Python writes them: Python's own parser is the judge of literals."""

from __future__ import annotations

import ast
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.text.tools.answers import cuts, parse, texts

from paceline.text.tools import CallEnded, Text, ToolSpec, collect

TOOLS = [ToolSpec("f", parameters={"type": "object", "properties": {"a": {}, "b": {}}}), ToolSpec("g"), ToolSpec("m.h")]


def read(text: str, tools: list[ToolSpec] = TOOLS) -> tuple[str, list[tuple[str, Any]]]:
    events = parse("pythonic", [text], tools)
    assert parse("pythonic", text, tools) == events
    parsed = collect(events)
    return parsed.text, [(call.name, json.loads(call.arguments)) for call in parsed.calls]


@pytest.mark.parametrize(
    ("text", "left", "calls"),
    [
        ('[f(a="x", b=2), m.h()]', "", [("f", {"a": "x", "b": 2}), ("m.h", {})]),
        (" [ f( a = 1 , ) ,\n g(), ] So.", " So.", [("f", {"a": 1}), ("g", {})]),
        ("[g()]\n[g()]", "", [("g", {}), ("g", {})]),
        ("[g(), 5]", ", 5]", [("g", {})]),
        ("So: [g()]", "So: [g()]", []),
        ("So:<|python_start|>[g()]<|python_end|>.", "So:.", [("g", {})]),
        ("So:<|tool_call_start|>[g()]<|tool_call_end|>.", "So:.", [("g", {})]),
        ("Hm.\n```tool_code\nf(a=1)\ng()\n```\nSo.", "Hm.\n\nSo.", [("f", {"a": 1}), ("g", {})]),
        ("```tool_code\n[f(a=1), g()]\n```", "", [("f", {"a": 1}), ("g", {})]),
        ("```tool_code\nprint(g())\n```", "```tool_code\nprint(g())\n```", []),
        ("[f(**{'a-b': 1, \"class\": None}, a=2)]", "", [("f", {"a-b": 1, "class": None, "a": 2})]),
        ("[f(1, 'x')]", "", [("f", {"a": 1, "b": "x"})]),
        ("[f([1], b=True)]", "", [("f", {"a": [1], "b": True})]),
        ("[g(1)]", "[g(1)]", []),  # it has no property for it
        ("[other(a=1)]", "[other(a=1)]", []),
        ("[see](there)", "[see](there)", []),
        ("[1, 2]", "[1, 2]", []),
        ("[f(a=x)]", "[f(a=x)]", []),
        ("[f(a=1+1)]", "[f(a=1+1)]", []),
        ("[f(a=g())]", "[f(a=g())]", []),
        ("[f(a=f'{1}')]", "[f(a=f'{1}')]", []),
        ("[f(a={1, 2})]", "[f(a={1, 2})]", []),
        ("[f(a={1: 2})]", "[f(a={1: 2})]", []),
        ("[f(a=007)]", "[f(a=007)]", []),
        ("[f(a=nan)]", "[f(a=nan)]", []),
        ("[f(*[1])]", "[f(*[1])]", []),
        ("[f(a=1 b=2)]", "[f(a=1 b=2)]", []),
        ("[f(a=1, a=2)]", "[f(a=1, a=2)]", []),
        ("[f(1, a=2)]", "[f(1, a=2)]", []),
        ("[f(a=1, **{'b': 2, 'a': 3})]", "[f(a=1, **{'b': 2, 'a': 3})]", []),
        ("[f(**{'\\x61': 1}, a=2)]", "[f(**{'\\x61': 1}, a=2)]", []),
        ("[f(**{'a': 1}, **{'b': 2}, **{})]", "", [("f", {"a": 1, "b": 2})]),
        ("[f(a=1, 2)]", "[f(a=1, 2)]", []),
        ("[f(b=1, 'x')]", "[f(b=1, 'x')]", []),
        ("[f(**{}, 1)]", "[f(**{}, 1)]", []),
        ("[f(a={'x': 1, 'x': 2})]", "", [("f", {"a": {"x": 2}})]),  # as in Python, the last counts
    ],
)
def test_calls_and_text(text: str, left: str, calls: list[tuple[str, Any]]):
    assert read(text) == (left, calls)


def test_any_name_is_a_call_when_no_tools_are_given():
    assert read("[other(x=1)]", []) == ("", [("other", {"x": 1})])


@pytest.mark.parametrize(
    ("literal", "written"),
    [
        ("12345678901234567890123", "12345678901234567890123"),
        ("1.50", "1.50"),
        ("-0", "-0"),
        ("+7", "7"),
        ("1_000.5_0", "1000.50"),
        (".5", "0.5"),
        ("5.", "5.0"),
        ("1E5", "1E5"),
        ("00", "0"),
        ("0x1F", "31"),
        ("-0b101", "-5"),
        ("true", "true"),
        ("null", "null"),
        ("(1)", "1"),
        ("(1,)", "[1]"),
        ("()", "[]"),
        ('"\\ud83d\\ude00"', '"\\ud83d\\ude00"'),
        ('"a\\/b"', '"a/b"'),
        ("'a\nb'", '"a\\nb"'),  # Python has no raw line break there; models do
        ("'\\N{BULLET}\\x41\\101\\0'", '"•AA\\u0000"'),
    ],
)
def test_literals_as_json(literal: str, written: str):
    events = parse("pythonic", f"[f(a={literal})]")
    assert collect(events).calls[0].arguments == f'{{"a": {written}}}'


python_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=6,
)


@given(data=st.data(), value=python_values)
def test_what_repr_writes_is_read(data: st.DataObject, value: Any):
    text = f"[f(a={value!r})]"
    events = parse("pythonic", data.draw(cuts(text)))
    assert json.loads(collect(events).calls[0].arguments) == {"a": json.loads(json.dumps(value))}


quotes = st.sampled_from(['"', "'", '"""', "'''"])
escapes = st.sampled_from(
    ["\\n", "\\\\", '\\"', "\\'", "\\x41", "\\u00e9", "\\U0001F600", "\\101", "\\7", "\\\n", "'", '"']
)
bodies = st.lists(escapes | st.text(string.ascii_letters + string.digits + " é👩", max_size=3), max_size=8).map("".join)


@given(data=st.data(), quote=quotes, body=bodies)
def test_strings_are_what_python_reads(data: st.DataObject, quote: str, body: str):
    literal = f"{quote}{body}{quote}"
    try:
        expected = ast.literal_eval(literal)
    except (SyntaxError, ValueError):
        expected = None
    text = f"[f(a={literal})]"
    events = parse("pythonic", data.draw(cuts(text)))
    assert parse("pythonic", [text]) == events
    if isinstance(expected, str) and is_one_literal(literal):
        assert [json.loads(call.arguments) for call in collect(events).calls] == [{"a": expected}]


def is_one_literal(literal: str) -> bool:
    """Python joins strings that stand side by side; these parsers do not."""
    import io
    import tokenize

    tokens = list(tokenize.generate_tokens(io.StringIO(literal).readline))
    return sum(token.type == tokenize.STRING for token in tokens) == 1


def test_deep_literals_are_read_up_to_a_limit():
    for depth, is_call in ((100, True), (300, False)):
        text = f"[f(a={'[' * depth}{']' * depth})]"
        assert bool(read(text)[1]) == is_call


def test_an_answer_cut_within_a_word_gives_no_word():
    events = parse("pythonic", "[f(a=1, b=Tr")
    assert events[-1] == CallEnded(0, "cut", "[f(a=1, b=Tr")
    assert collect(events).calls[0].arguments == '{"a": 1, "b": '
    assert parse("pythonic", "[f(a") == [Text("[f(a")]
