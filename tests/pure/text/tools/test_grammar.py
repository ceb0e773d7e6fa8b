"""Grammars of calls: which answers they allow, and that whatever they allow is read back as valid calls."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from paceline.errors import ConfigError, RequestError
from paceline.text.grammar import GrammarChecker, GrammarCompiler, GrammarSpec, encode_spec
from paceline.text.grammar.compiler import LLGrammar
from paceline.text.grammar.vocabulary import Vocabulary
from paceline.text.reasoning import ReasoningFormat
from paceline.text.tools import FORMATS, Bounds, ToolCall, ToolSpec, call_grammar, collect, make_parser, serialise
from paceline.text.tools.grammar import MAX_PARALLEL_CALLS
from paceline.text.tools.json_calls import MAX_NAME_CHARS
from paceline.text.tools.schemas import bounded, narrowed

EOS = 256
SPECIAL = {"[TOOL_CALLS]": 257, "[ARGS]": 258, "</think>": 259}
LONGER = [b'{"', b'": {"', b'"}}', b'": ', b'", "', b"\n</", b'"}', b"}\n", b")]"]
TOKENS = [*(bytes([i]) for i in range(256)), b"<eos>", *(text.encode() for text in SPECIAL), *LONGER]
VOCABULARY = Vocabulary(tokens=TOKENS, special_ids=[EOS, *SPECIAL.values()], eos_token_ids=[EOS], bos_token_id=None)
COMPILER = GrammarCompiler(lambda: VOCABULARY)
PLACE = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9}}, "required": ["x"]}
TOOLS = [
    ToolSpec(
        "weather",
        "Says how it is.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Bern", 'a "b"\\n']},
                "days": {"type": "integer", "minimum": 1, "maximum": 20},
                "wet": {"type": "boolean"},
                "at": PLACE,
                "tags": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 2},
            },
            "required": ["city", "at"],
        },
    ),
    ToolSpec("weather.now", "Has no arguments."),
    ToolSpec(
        "find",
        parameters={
            "type": "object",
            "properties": {"what": {"$ref": "#/$defs/Word"}, "class": {"type": "number", "maximum": 9, "minimum": 1}},
            "required": ["what"],
            "additionalProperties": False,
            "$defs": {"Word": {"type": "string", "maxLength": 3}},
        },
    ),
]
GOOD = [
    ToolCall("weather", '{"city": "Bern", "days": 20, "wet": true, "at": {"x": -3}, "tags": [null, false]}'),
    ToolCall("weather", '{"city": "a \\"b\\"\\\\n", "at": {"x": 9}}'),
    ToolCall("weather.now", "{}"),
    ToolCall("find", '{"what": "é\\"", "class": 1.5}'),
]
BAD = [
    ToolCall("weather", '{"city": "Rome", "at": {"x": 1}}'),
    ToolCall("weather", '{"city": "Bern"}'),
    ToolCall("weather", '{"city": "Bern", "at": {"x": 10}}'),
    ToolCall("weather", '{"city": "Bern", "at": {"x": 1, "y": 2}}'),
    ToolCall("weather", '{"city": "Bern", "days": 21, "at": {"x": 1}}'),
    ToolCall("weather.now", '{"a": 1}'),
    ToolCall("find", '{"what": "abcd"}'),
    ToolCall("find", "{}"),
    ToolCall("other", "{}"),
]


def compiled(format: str, choice: str | None = None, tools: list[ToolSpec] = TOOLS, **options: Any) -> LLGrammar:
    spec = call_grammar(format, tools, choice, special_ids=SPECIAL, **options)
    return COMPILER.compile(encode_spec(spec))


def ids_of(text: str, *, longer: bool) -> list[int]:
    """Special tokens by their ids, other text byte by byte or in longer tokens."""
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
        if part in SPECIAL:
            ids.append(SPECIAL[part])
            continue
        data = part.encode()
        while data:
            token = next((each for each in LONGER if longer and data.startswith(each)), data[:1])
            ids.append(TOKENS.index(token))
            data = data[len(token) :]
    return ids


def takes(grammar: LLGrammar, text: str) -> bool:
    results = set()
    for longer in (False, True):
        one = grammar.clone()
        results.add(all(one.accept(index) for index in ids_of(text, longer=longer)) and one.accepting)
    assert len(results) == 1, "it depends on the tokens"
    return results.pop()


def written(format: str, *calls: ToolCall) -> str:
    """`qwen3_coder` is enforced in the form of `hermes`. `pythonic` has JSON within values, and names that Python has
    taken make all arguments a dict."""
    text = serialise("hermes" if format == "qwen3_coder" else format, calls)
    if format == "pythonic":
        text = text.replace("[None, False]", "[null, false]")
        for call in calls:
            if call.name == "find":
                text = text.replace(text[text.index("find(") :].split(")]")[0], f"find(**{call.arguments}")
    return text


@pytest.mark.parametrize("format", FORMATS)
def test_each_tool_may_be_called_with_what_its_schema_allows(format: str):
    grammar = compiled(format)
    for call in GOOD:
        assert takes(grammar, written(format, call)), call
    for call in BAD:
        assert not takes(grammar, written(format, call)), call
    for text in ("", "Hello", "{}", "[]", written(format, GOOD[0])[:-1], written(format, GOOD[0]) + "."):
        assert not takes(grammar, text), text


@pytest.mark.parametrize("format", FORMATS)
def test_parallel_calls_are_allowed_or_not(format: str):
    many, one = compiled(format), compiled(format, parallel=False)
    assert takes(many, written(format, GOOD[0], GOOD[2]))
    assert takes(many, written(format, *[GOOD[2]] * MAX_PARALLEL_CALLS))
    assert not takes(many, written(format, *[GOOD[2]] * (MAX_PARALLEL_CALLS + 1)))
    assert takes(one, written(format, GOOD[0]))
    assert not takes(one, written(format, GOOD[0], GOOD[2]))


@pytest.mark.parametrize("format", FORMATS)
def test_a_named_tool_is_the_only_one(format: str):
    grammar = compiled(format, "weather.now")
    assert takes(grammar, written(format, GOOD[2]))
    assert not takes(grammar, written(format, GOOD[0]))


@pytest.mark.parametrize("format", FORMATS)
def test_whatever_is_allowed_is_read_back_as_valid_calls(format: str):
    choose = random.Random(format)
    grammar = compiled(format)
    words = np.zeros(-(-len(TOKENS) // 32), dtype=np.uint32)
    num_calls = 0
    for _ in range(15):
        data, one = b"", grammar.clone()
        while not one.done:
            one.fill_mask(words)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
            index = EOS if EOS in allowed and choose.random() < 0.5 else choose.choice(allowed)
            if index == EOS:
                break
            assert one.accept(index)
            data += TOKENS[index]
            assert len(data) < 5000
        parser = make_parser(format, TOOLS)
        parsed = collect([*parser.feed(data.decode()), *parser.finish()])
        assert not parsed.text.strip()
        assert not parsed.cut
        assert parsed.calls
        schemas = {tool.name: tool.parameters or {"maxProperties": 0} for tool in TOOLS}
        for call in parsed.calls:
            Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))
        num_calls += len(parsed.calls)
    assert num_calls > 15


def test_markers_that_are_special_tokens_are_no_text():
    spelled = list(written("mistral", GOOD[2]).encode())
    assert not all(map(compiled("mistral").clone().accept, spelled))
    plain = COMPILER.compile(encode_spec(call_grammar("mistral", TOOLS)))
    assert all(map(plain.accept, spelled))


@pytest.mark.parametrize("end", ["</think>", "</thought>"])  # a special token, and plain text
def test_reasoning_may_stand_before_calls(end: str):
    thought = ReasoningFormat("<think>", end)
    outside = compiled("hermes", reasoning=thought)
    inside = compiled("hermes", reasoning=thought, inside=True)
    call = written("hermes", GOOD[2])
    assert takes(outside, call)
    assert takes(outside, f"<think>\nSo <tool_call> it is.\n{end}\n\n{call}")
    assert not takes(outside, f"<think>{call}")
    assert not takes(inside, call)
    assert takes(inside, f"I {{think}}.{end}{call}")
    assert not takes(inside, f"I think.{end}So.{call}")


def test_parts_of_a_schema_that_cannot_be_enforced_are_left_out_or_refused():
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}}}
    assert takes(compiled("hermes", tools=[ToolSpec("f", parameters=schema)]), written("hermes", ToolCall("f", "{}")))
    with pytest.raises(RequestError, match="uniqueItems"):
        compiled("hermes", tools=[ToolSpec("f", parameters=schema, strict=True)])


@pytest.mark.parametrize("format", FORMATS)
def test_strings_and_lists_without_a_bound_may_be_given_one(format: str):
    text = {"type": "string"}
    properties = {
        "a": text,
        "b": {**text, "maxLength": 9},
        "c": {**text, "enum": ["abcdef"]},
        "d": {"type": "array", "items": text},
        "e": {**text, "minLength": 5},
        "f": {**text, "minLength": 5.0},
    }
    tools = [ToolSpec("f", parameters={"type": "object", "properties": properties})]
    free, tight = compiled(format, tools=tools), compiled(format, tools=tools, bounds=Bounds(3, 2))

    def results(arguments: str) -> tuple[bool, bool]:
        answer = written(format, ToolCall("f", arguments))
        return takes(free, answer), takes(tight, answer)

    for arguments in ('{"a": "abc"}', '{"b": "abcdef"}', '{"c": "abcdef"}', '{"d": ["a", "abc"]}', '{"e": "abcde"}'):
        assert results(arguments) == (True, True)
    assert results('{"f": "abcde"}') == (True, True)
    for arguments in ('{"a": "abcd"}', '{"d": ["abcd"]}', '{"d": ["a", "b", "c"]}', '{"e": "abcdef"}'):
        assert results(arguments) == (True, False)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({}, "{}", '{"a": 1}'),
        ({"type": "object"}, '{"a": {"b": 1}}', "[]"),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, '{"b": 1}', '{"b": "c"}'),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, '{"a": 1}', "{}"),
        ({"required": ["a"]}, '{"a": 1}', "{}"),
        ({"properties": {"a": {}, "b": {}}, "required": ["b"]}, '{"b": 1}', '{"a": 1}'),
        (
            {"properties": {"a": {"type": "boolean"}, "b": {"$ref": "#/properties/a"}}},
            '{"b": true}',
            '{"b": 1}',
        ),
    ],
)
def test_schemas_of_every_shape(format: str, schema: dict[str, Any], good: str, bad: str):
    grammar = compiled(format, tools=[ToolSpec("f", parameters=schema)])

    def forms(arguments: str) -> list[str]:
        call = ToolCall("f", arguments)
        return [f"[f(**{arguments})]", serialise(format, [call])] if format == "pythonic" else [written(format, call)]

    assert any(takes(grammar, text) for text in forms(good))
    if bad != "[]":
        assert not any(takes(grammar, text) for text in forms(bad))


PART = {"type": "object", "properties": {"x": {"type": "boolean"}}}
WITH_Y = {"properties": {"y": {"type": "boolean"}}, "required": ["y"]}
LONG = {"type": "string", "minLength": 5}


@pytest.mark.parametrize("bounds", [None, Bounds(3, 2)])
@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"a": PART}, "allOf": [{"properties": {"a": WITH_Y}}]}, '{"a": {"x": true, "y": true}}'),
        ({"properties": {"a": PART}, "anyOf": [{"properties": {"a": WITH_Y}}]}, '{"a": {"x": true, "y": true}}'),
        (
            {"properties": {"a": {"items": PART, "type": "array", "allOf": [{"items": WITH_Y}]}}},
            '{"a": [{"x": true, "y": true}]}',
        ),
        (
            {"properties": {"a": PART, "b": {"allOf": [{"$ref": "#/properties/a"}, WITH_Y]}}},
            '{"b": {"x": true, "y": true}}',
        ),
        ({"properties": {"a": {"type": "string"}}, "allOf": [{"properties": {"a": LONG}}]}, '{"a": "abcde"}'),
        ({"properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a", **LONG}}}, '{"b": "abcde"}'),
    ],
)
def test_what_is_combined_with_other_schemas_can_be_satisfied(
    schema: dict[str, Any], arguments: str, bounds: Bounds | None
):
    Draft202012Validator(schema).validate(json.loads(arguments))
    assert takes(
        compiled("hermes", tools=[ToolSpec("f", parameters=schema)], bounds=bounds),
        written("hermes", ToolCall("f", arguments)),
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": PART}, "patternProperties": {"^a": WITH_Y}},
        {"properties": {"a": PART}, "dependentSchemas": {"a": {"properties": {"a": WITH_Y}}}},
        {"properties": {"a": {"type": "string"}}, "enum": [{"a": "abcde"}]},
        {"properties": {"a": {"type": "array", "items": PART, "contains": WITH_Y}}},
    ],
)
def test_combined_schemas_stay_as_they_are(schema: dict[str, Any]):
    inside = schema["properties"]["a"] if "contains" in schema["properties"]["a"] else schema
    assert narrowed(inside) == bounded(inside, Bounds(3, 2)) == inside


@pytest.mark.parametrize("format", FORMATS)
def test_a_tool_may_have_any_name_that_parsers_read(format: str):
    tools = [ToolSpec("required"), ToolSpec("n" * MAX_NAME_CHARS), ToolSpec("n" * (MAX_NAME_CHARS + 1)), ToolSpec("")]
    for tool in tools[:2]:
        grammar = compiled(format, tool.name, tools)
        for each in tools[:2]:
            text = written(format, ToolCall(each.name, "{}"))
            assert takes(grammar, text) == (each is tool)
            parser = make_parser(format, tools)
            assert [call.name for call in collect([*parser.feed(text), *parser.finish()]).calls] == [each.name]
    for index in (2, 3):
        with pytest.raises(RequestError, match="1 to 256 characters") as caught:
            call_grammar(format, tools, tools[index].name)
        assert caught.value.param == f"tools[{index}].function.name"


def test_the_checker_finds_them_quick():
    checker = GrammarChecker(lambda: VOCABULARY)
    try:
        for format in FORMATS:
            checker.check(encode_spec(call_grammar(format, TOOLS, special_ids=SPECIAL)))
    finally:
        checker.close()


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        (TOOLS, "whether", "names no tool"),
        (TOOLS, "required", "names no tool"),
        ([], None, "needs tools"),
        ([ToolSpec("f", parameters={"type": "array"})], "f", "schema of an object"),
        ([ToolSpec("a b", parameters={})], "a b", "without quotation marks"),
    ],
)
def test_what_cannot_be_is_refused(tools: list[ToolSpec], choice: str | None, message: str):
    with pytest.raises(RequestError, match=message) as caught:
        call_grammar("pythonic", tools, choice)
    assert caught.value.param in ("tool_choice", "tools[0].function.parameters", "tools[0].function.name")


def test_schemas_that_nest_too_deep_are_refused():
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(100):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(RequestError, match="too deep") as caught:
        call_grammar("hermes", [ToolSpec("f"), ToolSpec("g", parameters=schema)])
    assert caught.value.param == "tools[1].function.parameters"


KEYWORDS = ("type", "properties", "required", "items", "enum", "anyOf", "$ref", "minLength", "maxItems", "$defs", "a")
odd = st.recursive(
    st.sampled_from([None, True, False, 3, -1.5, "object", "string", "array", "a", "#/$defs/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@given(schema=odd, format=st.sampled_from(sorted(FORMATS)))
def test_odd_schemas_are_refused_or_used_and_never_more(schema: Any, format: str):
    tools = [ToolSpec("f", parameters=schema)]
    text = serialise(format, [ToolCall("f", '{"a": "x", "b": [1]}')])
    parser = make_parser(format, tools)
    assert collect([*parser.feed(text), *parser.finish()]).calls
    for bounds in (None, Bounds(3, 2)):
        with suppress(RequestError):
            COMPILER.compile(encode_spec(call_grammar(format, tools, bounds=bounds)))


def test_unknown_formats_are_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean hermes"):
        call_grammar("hermess", TOOLS)


def test_a_grammar_is_a_value():
    first, second = (call_grammar("hermes", TOOLS) for _ in range(2))
    assert isinstance(first, GrammarSpec)
    assert encode_spec(first) == encode_spec(second)
