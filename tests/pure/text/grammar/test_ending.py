"""The way to a whole text: from anywhere in a call or in JSON it leads to an end, and the grammar allows all of it."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from paceline.text.grammar import GrammarCompiler, GrammarSpec, encode_spec
from paceline.text.grammar.compiler import LLGrammar
from paceline.text.grammar.vocabulary import Vocabulary
from paceline.text.reasoning import ReasoningFormat
from paceline.text.tools import FORMATS, ToolSpec, call_grammar, collect, make_parser

EOS = 256
SPECIAL = {"[TOOL_CALLS]": 257, "[ARGS]": 258, "</think>": 259, "<tool_call>": 260, "</tool_call>": 261}
LONGER = [
    b'{"',
    b'": {"',
    b'"}}',
    b'": ',
    b'": "',
    b'", "',
    b', "',
    b"\n</",
    b'"}',
    b"}\n",
    b")]",
    b"}}",
    b"arguments",
    b"name",
]
TOKENS = [*(bytes([i]) for i in range(256)), b"<eos>", *(text.encode() for text in SPECIAL), *LONGER]
VOCABULARY = Vocabulary(tokens=TOKENS, special_ids=[EOS, *SPECIAL.values()], eos_token_ids=[EOS], bos_token_id=None)
COMPILER = GrammarCompiler(lambda: VOCABULARY)
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "kind": {"enum": ["long winding", "short"]},
        "count": {"type": "integer", "minimum": 100, "maximum": 5000},
        "sevens": {"type": "integer", "multipleOf": 7},
        "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "day": {"type": "string", "format": "date"},
        "mail": {"type": "string", "format": "email"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "least": {"type": "string", "minLength": 12},
        "maybe": {
            "anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": "null"}]
        },
        "any": {},
        "map": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        "parts": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
        },
    },
    "required": ["title", "kind", "count", "sevens", "share", "day", "mail", "code", "least", "maybe", "parts"],
}
TOOLS = [ToolSpec("write_down", "Writes it down.", SCHEMA), ToolSpec("stop.now", "Has no arguments.")]


def compiled(spec: GrammarSpec, *, finish: bool = True) -> LLGrammar:
    return COMPILER.compile(encode_spec(msgspec.structs.replace(spec, finish=finish)))


def allowed(grammar: LLGrammar) -> list[int]:
    words = np.zeros(-(-len(TOKENS) // 32), dtype=np.uint32)
    grammar.fill_mask(words)
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def wander(grammar: LLGrammar, choose: random.Random, num_tokens: int) -> bytes:
    """Random tokens, more likely those that a text is made of than odd bytes."""
    data = b""
    for _ in range(num_tokens):
        ids = allowed(grammar)
        plain = [i for i in ids if 32 <= i < 127 or i > EOS] or ids
        index = choose.choice(plain)
        if index == EOS or not grammar.accept(index):
            break
        data += TOKENS[index]
        if grammar.done:
            break
    return data


def led(grammar: LLGrammar, most: int = 400) -> bytes:
    way = grammar.way_out(most)
    assert way is not None
    assert len(way) <= most
    assert grammar.way_out(most) == way, "it changed something"
    assert all(grammar.accept(index) for index in way)
    assert grammar.accepting
    return b"".join(TOKENS[index] for index in way)


@pytest.mark.parametrize("format", FORMATS)
def test_from_anywhere_in_a_call_there_is_a_way(format: str) -> None:
    choose = random.Random(format)
    whole = compiled(call_grammar(format, TOOLS, special_ids=SPECIAL))
    schemas = {"write_down": SCHEMA, "stop.now": {"maxProperties": 0}}
    for _ in range(6):
        grammar = whole.clone()
        data = wander(grammar, choose, choose.randint(0, 120))
        data += led(grammar)
        parser = make_parser(format, TOOLS)
        parsed = collect([*parser.feed(data.decode()), *parser.finish()])
        assert parsed.calls, data
        assert not parsed.cut
        assert not parsed.text.strip()
        for call in parsed.calls:
            Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))


def test_from_anywhere_in_json_there_is_a_way() -> None:
    choose = random.Random(1)
    whole = compiled(GrammarSpec(kind="json", value=SCHEMA))
    for _ in range(15):
        grammar = whole.clone()
        data = wander(grammar, choose, choose.randint(0, 200))
        Draft202012Validator(SCHEMA).validate(json.loads(data + led(grammar)))


@pytest.mark.parametrize(
    ("begun", "end"),
    [
        ("", '{"a": ""}'),
        ('{"a": "so it goes on', '"}'),
        ('{"a": "x", "b": [1, 2', "]}"),
        ('{"a": "x", "b": [', "]}"),
        ('{"a": "\\', None),
    ],
)
def test_what_is_open_is_closed_and_nothing_more(begun: str, end: str | None) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    grammar = compiled(GrammarSpec(kind="json", value=schema, whitespace=""))
    begun, end = begun.replace(": ", ":").replace(", ", ","), end and end.replace(": ", ":")
    assert all(grammar.accept(index) for index in begun.encode())
    found = led(grammar).decode()
    assert found == end if end is not None else json.loads(begun + found)


def test_reasoning_ends_where_a_special_token_ends_it() -> None:
    grammar = compiled(
        call_grammar(
            "hermes",
            TOOLS,
            "stop.now",
            special_ids=SPECIAL,
            reasoning=ReasoningFormat("<think>", "</think>"),
            inside=True,
        )
    )
    assert all(grammar.accept(index) for index in b"Let me see")
    found = led(grammar).decode()
    assert found.startswith("</think>")
    assert '"stop.now"' in found


def test_where_there_is_no_way_it_says_so() -> None:
    endless: Any = {"kind": "regex", "value": "(ab|c)*d{300}"}
    grammar = compiled(GrammarSpec(**endless))
    assert grammar.way_out(256) is None
    assert grammar.finishes
    plain = compiled(GrammarSpec(**endless), finish=False)
    assert plain.way_out(256) is None
    assert not plain.finishes
