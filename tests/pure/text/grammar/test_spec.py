"""A grammar as a value: what is refused before anything is compiled, and what survives its way to the engine."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import RequestError
from paceline.text.grammar import GrammarSpec, decode_spec, encode_spec
from paceline.text.grammar.spec import (
    MAX_CHOICES,
    MAX_EBNF_CHARS,
    MAX_EBNF_LINES,
    MAX_PATTERN_CHARS,
    MAX_SCHEMA_DEPTH,
    MAX_SPEC_BYTES,
)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec(kind="json", value={"z": {"type": "integer"}, "a": 1.5, "é": [True, None]}, lenient=True),
        GrammarSpec(kind="json", value=True, whitespace=""),
        GrammarSpec(kind="regex", value="[a-z]+\n"),
        GrammarSpec(kind="choice", value=["", "yes"]),
        GrammarSpec(kind="lark", value='start: "a"'),
    ],
)
def test_a_value_comes_back_as_it_was(spec: GrammarSpec) -> None:
    assert decode_spec(encode_spec(spec)) == spec


def test_properties_keep_their_order() -> None:
    """They are written in it, so two schemas that differ in it are two grammars."""
    first, second = ({"properties": {a: {}, b: {}}} for a, b in (("x", "y"), ("y", "x")))
    data = [encode_spec(GrammarSpec(kind="json", value=value)) for value in (first, second)]
    assert data[0] != data[1]
    assert list(decode_spec(data[1]).value["properties"]) == ["y", "x"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "json", "value": "text"}, "a JSON schema is an object"),
        ({"kind": "json", "value": False}, "nothing can satisfy"),
        ({"kind": "json", "value": nested(MAX_SCHEMA_DEPTH)}, "nests too deep"),
        ({"kind": "json", "value": {"pattern": "a" * (MAX_PATTERN_CHARS + 1)}}, "too long"),
        ({"kind": "json", "value": {}, "whitespace": " " * 300}, "too long"),
        ({"kind": "choice", "value": []}, "at least one"),
        ({"kind": "choice", "value": ["a", 1]}, "list of texts"),
        ({"kind": "choice", "value": ["a"] * (MAX_CHOICES + 1)}, "too many"),
        ({"kind": "regex", "value": ""}, "not empty"),
        ({"kind": "regex", "value": "a" * (MAX_PATTERN_CHARS + 1)}, "too long"),
        ({"kind": "ebnf", "value": 'root ::= "' + "a" * MAX_EBNF_CHARS + '"'}, "too long"),
        ({"kind": "ebnf", "value": 'root ::= "a"' + "\n" * (MAX_EBNF_LINES + 1)}, "too long"),
        ({"kind": "lark", "value": None}, "is a text"),
        ({"kind": "bnf", "value": "a"}, "ebnf"),
    ],
)
def test_what_cannot_be_is_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        GrammarSpec(**fields)
    assert caught.value.param == "grammar"


def test_the_deepest_schema_that_is_taken() -> None:
    GrammarSpec(kind="json", value=nested(MAX_SCHEMA_DEPTH - 2))


def test_a_long_value_is_refused_on_both_sides() -> None:
    spec = GrammarSpec(kind="json", value={"enum": ["x" * MAX_SPEC_BYTES]})
    with pytest.raises(RequestError, match="too long"):
        encode_spec(spec)
    with pytest.raises(RequestError, match="too long"):
        decode_spec(b" " * (MAX_SPEC_BYTES + 1))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"kind":"json"}', b'{"kind":"odd","value":1}', b"\xff"])
def test_bytes_that_are_no_grammar_are_refused(data: bytes) -> None:
    with pytest.raises(RequestError):
        decode_spec(data)


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(RequestError, match="Unicode"):
        encode_spec(GrammarSpec(kind="choice", value=["\ud800"]))
