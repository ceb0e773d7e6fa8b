"""Formats with calls in JSON: what each takes for a call, how strict it is, and when it says so."""

from __future__ import annotations

import json

import pytest
from tests.pure.text.tools.answers import parse, texts_of

from paceline.text.tools import ArgumentsDelta, CallEnded, CallStarted, Text, ToolSpec, collect, make_parser

F = '{"name": "f", "arguments": {"a": 1}}'
G = '{"name": "g", "parameters": {}}'
LLAMA = "llama3_json"


def read(format: str, text: str, *names: str) -> tuple[str, list[tuple[str, str]]]:
    """Text and calls of an answer; the same in one piece and character by character."""
    tools = [ToolSpec(name) for name in names]
    events = parse(format, [text], tools)
    assert parse(format, text, tools) == events
    parsed = collect(events)
    return parsed.text, [(call.name, call.arguments) for call in parsed.calls]


@pytest.mark.parametrize(
    ("format", "text", "left", "calls"),
    [
        ("hermes", f"Hm.\n<tool_call>\n{F}\n</tool_call>\nSo.", "Hm.\n\nSo.", [("f", '{"a": 1}')]),
        ("hermes", f"<tool_call>{F}</tool_call><tool_call>{G}</tool_call>", "", [("f", '{"a": 1}'), ("g", "{}")]),
        ("hermes", f"<tool_call>[{F}, {G}]</tool_call>", "", [("f", '{"a": 1}'), ("g", "{}")]),
        ("hermes", f"<tool_call>\n{F}", "", [("f", '{"a": 1}')]),  # the end was the stop string
        ("hermes", f"<tool_call>{F[:-1]}</tool_call>", "", [("f", '{"a": 1}')]),  # a brace is missing
        (  # it does not close: what follows its arguments is text
            "hermes",
            '<tool_call>{"name": "f", "arguments": {}, "note": "the rest of the answer',
            ', "note": "the rest of the answer',
            [("f", "{}")],
        ),
        (
            "hermes",
            f'<tool_call>{{"parameters": {{}}, "name": "f", "note": 1. So.<tool_call>{F}',
            ', "note": 1. So.',
            [("f", "{}"), ("f", '{"a": 1}')],
        ),
        ("hermes", f"<tool_call>[{F[:-1]}, {G}]</tool_call>", "", [("f", '{"a": 1}'), ("g", "{}")]),
        ("hermes", f"<tool_call>{F}}}</tool_call>", "}</tool_call>", [("f", '{"a": 1}')]),  # one too many
        ("hermes", f"{F}", F, []),  # without a marker
        ("hermes", "<tool_call>\nWhat?\n</tool_call>", "<tool_call>\nWhat?\n</tool_call>", []),
        ("hermes", f"<tool_call><tool_call>{F}</tool_call>", "<tool_call>", [("f", '{"a": 1}')]),
        ("hermes", f"a < b <tool <tool_call>{G}", "a < b <tool ", [("g", "{}")]),
        ("hermes", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
        ("hermes", f"<tool_call>[{F}, 5]</tool_call>", ", 5]</tool_call>", [("f", '{"a": 1}')]),
        ("mistral", f"Hm.[TOOL_CALLS] [{F}, {G}] So.", "Hm. So.", [("f", '{"a": 1}'), ("g", "{}")]),
        ("mistral", f"[TOOL_CALLS]{F}", "", [("f", '{"a": 1}')]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}', "", [("f", '{"a": 1}'), ("g", "{}")]),
        ("mistral", '[TOOL_CALLS]f.g-h[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}.', ".", [("f.g-h", '{"a": 1}')]),
        ("mistral", "[TOOL_CALLS]What?", "[TOOL_CALLS]What?", []),
        ("mistral", "[TOOL_CALLS]f[ARGS]1", "[TOOL_CALLS]f[ARGS]1", []),
        (LLAMA, G, "", [("g", "{}")]),
        (LLAMA, f" \n{F}; {G}\n{G}", "", [("f", '{"a": 1}'), ("g", "{}"), ("g", "{}")]),
        (LLAMA, f"<|python_tag|>{F}; <|python_tag|>{G}", "", [("f", '{"a": 1}'), ("g", "{}")]),
        (LLAMA, f"Hm.<|python_tag|>{F}; So.", "Hm.; So.", [("f", '{"a": 1}')]),
        (LLAMA, f"<|python_start|>{G}<|python_end|>", "", [("g", "{}")]),
        (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
        (LLAMA, f"So: {F}", f"So: {F}", []),  # neither at the beginning nor behind a marker
        (LLAMA, '{"type": "function", "name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ("json", F, "", [("f", '{"a": 1}')]),
        ("json", f"[{F}, {G}]", "", [("f", '{"a": 1}'), ("g", "{}")]),
        ("json", f"Hm.\n```json\n{F}\n``` So.", "Hm.\n So.", [("f", '{"a": 1}')]),
        ("json", f"Hm.<|tool_call|>[{F}, {G}]<|/tool_call|>", "Hm.", [("f", '{"a": 1}'), ("g", "{}")]),
        ("json", f"<TOOLCALL>[{F}]</TOOLCALL>\n", "\n", [("f", '{"a": 1}')]),
        ("json", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', []),
        ("json", '{"name": "Bob", "age": 7}', '{"name": "Bob", "age": 7}', []),
        ("json", '{"name": "Bob"}', '{"name": "Bob"}', []),
        ("json", '["name"]', '["name"]', []),
        ("json", '{"name": "f", "arguments": {}, "age": 7}', "", [("f", "{}")]),
    ],
)
def test_calls_and_text(format: str, text: str, left: str, calls: list[tuple[str, str]]):
    assert read(format, text) == (left, calls)


@pytest.mark.parametrize("format", ["hermes", LLAMA, "mistral"])
@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ('"arguments": {"a": 1}, "name": "f"', '{"a": 1}'),
        ('"name": "f", "arguments": null', "{}"),
        ('"name": "f"', "{}"),
        ('"id": "x", "name": "f", "arguments": {}, "extra": [1, {"name": "no"}]', "{}"),
        ('"name": "f", "arguments": {"a": 1}, "arguments": {"b": 2}, "name": "g"', '{"a": 1}'),
        ('"\\u006eame": "\\u0066", "parameters" : {}', "{}"),
        (
            '"name": "f", "arguments": {"a": 123456789012345678901234567890.0e-1, "b":\n[ ] }',
            '{"a": 123456789012345678901234567890.0e-1, "b":\n[ ] }',
        ),
        ('"name": "f", "arguments": {"a": "x\ny\t\\/\\ud83d\\ude00"}', '{"a": "x\\ny\\t\\/\\ud83d\\ude00"}'),
        ('"name": "f", "arguments": {"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    ],
)
def test_members_in_any_order_and_arguments_as_written(format: str, inside: str, arguments: str):
    begin = {"hermes": "<tool_call>", LLAMA: "<|python_tag|>", "mistral": "[TOOL_CALLS]"}[format]
    assert read(format, f"{begin}{{{inside}}}") == ("", [("f", arguments)])


@pytest.mark.parametrize(
    "inside",
    [
        '"arguments": {"a": 1}',
        '"name": "", "arguments": {}',
        '"name": 5, "arguments": {}',
        '"name": "f", "arguments": "{}"',
        '"name": "f", "arguments": [1]',
        '"name": "f" "arguments": {}',
        '"name": "\\ud800", "arguments": {}',
        "'name': 'f', 'arguments': {}",
        f'"name": "{"n" * 300}", "arguments": {{}}',
        '"x": 01, "name": "f"',
        '"x": nul, "name": "f"',
        '"x": NaN, "name": "f"',
        '"x": "\\x", "name": "f"',
        '"x": "\\u12g4", "name": "f"',
        '"x": [1,], "name": "f"',
        '"x": {1: 2}, "name": "f"',
        f'"x": {"[" * 200}{"]" * 200}, "name": "f"',
    ],
)
def test_what_is_no_call_is_text(inside: str):
    text = f"<tool_call>{{{inside}}}</tool_call>"
    assert read("hermes", text) == (text, [])


def test_arguments_that_break_are_a_broken_call_and_text_again():
    text = '<tool_call>{"name": "f", "arguments": {"a": 1 "b": 2}}</tool_call>'
    assert parse("hermes", text) == [
        CallStarted(0, "f"),
        ArgumentsDelta(0, '{"a": 1 '),
        CallEnded(0, "broken", text[: text.index('"b"')]),
        Text('"b": 2}}</tool_call>'),
    ]
    assert read("hermes", text) == (text, [])


def test_a_call_behind_a_broken_one_counts():
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": <tool_call>{F}</tool_call>'
    assert read("hermes", text) == ('<tool_call>{"name": "f", "arguments": {"a": ', [("f", '{"a": 1}')])


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (len("<tool_call>"), [Text("<tool_call>")]),
        (len('<tool_call>{"name": "f'), [Text('<tool_call>{"name": "f')]),  # the name may go on
        (len('<tool_call>{"name": "f"'), [CallStarted(0, "f"), CallEnded(0, "cut", '<tool_call>{"name": "f"')]),
        (
            len('<tool_call>{"name": "f", "arguments": {"a'),
            [
                CallStarted(0, "f"),
                ArgumentsDelta(0, '{"a'),
                CallEnded(0, "cut", '<tool_call>{"name": "f", "arguments": {"a'),
            ],
        ),
    ],
)
def test_an_answer_cut_within_a_call(size: int, expected: list[object]):
    text = f"<tool_call>{F}</tool_call>"
    assert parse("hermes", text[:size]) == expected


def test_a_name_that_no_tool_has_is_a_call_only_behind_a_marker():
    assert read("hermes", f"<tool_call>{F}</tool_call>", "g") == ("", [("f", '{"a": 1}')])
    assert read(LLAMA, f"<|python_tag|>{F}", "g") == ("", [("f", '{"a": 1}')])
    assert read(LLAMA, F, "g") == (F, [])
    assert read(LLAMA, F, "f") == ("", [("f", '{"a": 1}')])
    assert read("json", F, "g") == (F, [])


@pytest.mark.parametrize(
    ("format", "text", "left"),
    [
        (LLAMA, f"<|python_tag|>{F}; {G}", ""),
        (LLAMA, f"<|python_start|>{F}; {G}<|python_end|>", ""),
        ("json", f"<|tool_call|>{F}\n{G}<|/tool_call|>", ""),
        ("json", f"Hm.<TOOLCALL>{F}, {G}", "Hm."),
    ],
)
def test_any_name_is_a_call_up_to_the_end_of_what_a_marker_began(format: str, text: str, left: str):
    assert read(format, text, "f") == (left, [("f", '{"a": 1}'), ("g", "{}")])


@pytest.mark.parametrize(
    ("format", "text", "left"),
    [
        (LLAMA, f"<|python_start|>{F}<|python_end|>; {G}", f"; {G}"),
        ("json", f"<|tool_call|>{F}<|/tool_call|>\n{G}", f"\n{G}"),
        ("json", f"```json\n{F}\n{G}\n```", f"\n{G}\n```"),
    ],
)
def test_behind_that_end_only_a_tool_that_was_offered_is_called(format: str, text: str, left: str):
    assert read(format, text, "f") == (left, [("f", '{"a": 1}')])


def test_events_come_as_soon_as_they_are_certain():
    parser = make_parser("hermes")
    assert parser.feed("Hm. <") == [Text("Hm. ")]
    assert parser.feed("b> <tool") == [Text("<b> ")]
    assert parser.feed('_call>\n{"name": "f", "argum') == []
    assert parser.feed('ents": {"a": "x') == [CallStarted(0, "f"), ArgumentsDelta(0, '{"a": "x')]
    assert parser.feed("y </tool_call>") == [ArgumentsDelta(0, "y </tool_call>")]
    assert parser.feed("\\") == []
    assert parser.feed('n", "b": 12') == [ArgumentsDelta(0, '\\n", "b": ')]
    assert parser.feed("3}") == [ArgumentsDelta(0, "123}")]
    raw = '<tool_call>\n{"name": "f", "arguments": {"a": "xy </tool_call>\\n", "b": 123}}'
    assert parser.feed("}\n") == [CallEnded(0, "complete", raw)]
    assert parser.feed("</tool_call> ") == [Text(" ")]
    assert parser.finish() == []


def test_an_answer_that_is_json_and_no_call_comes_at_once():
    parser = make_parser("json", [ToolSpec("f")])
    assert texts_of(parser.feed('{"title": "A')) == '{"title": "A'
    assert texts_of(parser.feed(' b"')) == ' b"'


@pytest.mark.parametrize("format", ["hermes", "mistral", LLAMA])
def test_a_whole_call_in_the_last_delta_is_delivered(format: str):
    begin = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", LLAMA: ""}[format]
    parser = make_parser(format)
    events = [*parser.feed(f"{begin}{F}"), *parser.finish()]
    assert [type(event) for event in events] == [CallStarted, ArgumentsDelta, CallEnded]
    assert json.loads(collect(events).calls[0].arguments) == {"a": 1}


def test_deep_arguments_are_read_up_to_a_limit():
    for depth, is_call in ((100, True), (200, False)):
        arguments = '{"a": ' + "[" * depth + "]" * depth + "}"
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}'
        assert bool(read("hermes", text)[1]) == is_call
