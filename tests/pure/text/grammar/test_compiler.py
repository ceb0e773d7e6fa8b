"""llguidance behind the port: which texts each kind of grammar takes, over a vocabulary of bytes and longer tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from paceline.errors import RequestError
from paceline.text.grammar import GrammarCompiler, GrammarSpec, encode_spec
from paceline.text.grammar.compiler import LLGrammar
from paceline.text.grammar.vocabulary import Vocabulary

EOS, END, PAD = 256, 257, 260
WORDS = [b'{"', b'":']
TOKENS = [*(bytes([i]) for i in range(256)), b"<eos>", b"<end>", *WORDS, b""]
VOCABULARY = Vocabulary(tokens=TOKENS, special_ids=[EOS, END], eos_token_ids=[EOS, END], bos_token_id=None)
COMPILER = GrammarCompiler(lambda: VOCABULARY)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def grammar(kind: Any, value: Any, **more: Any) -> LLGrammar:
    return COMPILER.compile(encode_spec(GrammarSpec(kind=kind, value=value, **more)))


def allowed(one: LLGrammar) -> set[int]:
    words = np.zeros(-(-len(TOKENS) // 32), dtype=np.uint32)
    one.fill_mask(words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def takes(one: LLGrammar, text: str) -> bool:
    """Byte by byte, each of them allowed by the mask before it."""
    one = one.clone()
    for byte in text.encode():
        fits = one.clone().accept(byte)
        assert (byte in allowed(one)) == fits
        if not fits:
            return False
        assert one.accept(byte)
    return one.accepting


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        (
            "json",
            PERSON,
            ['{"name": "Ann", "age": 7}', '{\n  "name":"", "age": 150}'],
            ["{}", '{"name":"A","age":151}'],
        ),
        ("json", {"type": "object"}, ["{}", '{"a": {"b": [1, null]}}'], ["[]", "1", '{"a":}']),
        ("json", True, ["1", "[]", '"é\\n"', "-1.5e3", "null"], ["nul", "[1,]", "01"]),
        ("json", {"enum": ["a b", 3]}, ['"a b"', "3"], ['"a"', "4"]),
        (
            "json",
            {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}},
            ["[[],[]]"],
            ["1"],
        ),
        ("regex", r"\d{3}-[a-c]+", ["123-ab"], ["12-a", "123-", "123-d"]),
        ("regex", "é+/", ["éé/"], ["e/"]),
        ("choice", ["yes", "no", "ye"], ["yes", "no", "ye"], ["y", "yesno", ""]),
        ("choice", ['q"\\\n\t', "", "日本"], ['q"\\\n\t', "", "日本"], ['q"', "日"]),
        ("lark", 'start: "a" b\nb: "b" b | "."', ["a.", "abb."], ["ab", "b."]),
        ("ebnf", 'root ::= "a" b\nb ::= "b" b | "."', ["a.", "abb."], ["ab", "b."]),
        # texts that look like the library's options
        ("choice", ["%llguidance", "%llguidance {}"], ["%llguidance {}"], ["%"]),
        ("json", {"const": "%llguidance {}"}, ['"%llguidance {}"'], ['""']),
        ("regex", "%llguidance {2}", ["%llguidance  "], ["%llguidance {2}"]),
        ("lark", '// %llguidance is not needed\nstart: "%llguidance"', ["%llguidance"], ["a"]),
    ],
)
def test_each_kind_takes_its_texts_and_no_others(kind: str, value: Any, good: list[str], bad: list[str]) -> None:
    one = grammar(kind, value)
    assert [takes(one, text) for text in good] == [True] * len(good)
    assert [takes(one, text) for text in bad] == [False] * len(bad)


def test_space_in_json_is_bounded_by_default_and_may_be_none_or_a_pattern() -> None:
    tight, pretty = '{"a":1,"b":[2]}', json.dumps({"a": 1, "b": [2]}, indent=4)
    schema = {"type": "object"}
    assert takes(grammar("json", schema), tight)
    assert takes(grammar("json", schema), pretty)
    assert not takes(grammar("json", schema), '{  "a":1}')
    assert not takes(grammar("json", schema), '{\n\n"a":1}')
    assert takes(grammar("json", schema, whitespace=""), tight)
    assert not takes(grammar("json", schema, whitespace=""), pretty)
    assert takes(grammar("json", schema, whitespace="[ ]{0,3}"), '{  "a":1}')


def test_a_text_may_be_cut_into_tokens_in_any_way() -> None:
    """Where the bytes are certain, too: nothing is forced."""
    one = grammar("choice", ['{":'])
    assert allowed(one) == {ord("{"), 258}
    assert one.accept(258)
    assert allowed(one) == {ord(":")}


def test_ids_that_end_a_sequence_are_allowed_where_the_text_is_whole() -> None:
    one = grammar("regex", "ab*")
    assert allowed(one) == {ord("a")}
    assert not one.accepting
    assert one.accept(ord("a"))
    assert one.accepting
    assert not one.done
    assert allowed(one) == {ord("b"), EOS, END}
    short = grammar("regex", "ab")
    for byte in b"ab":
        assert not short.done
        assert short.accept(byte)
    assert short.done
    assert allowed(short) == {EOS, END}


def test_a_special_token_is_no_text_and_its_name_is() -> None:
    """`<eos>` in a JSON string is spelled; the id never stands there."""
    one = grammar("json", {"type": "string"})
    for byte in b'"<eos>':
        assert not allowed(one) & {EOS, END, PAD}
        assert one.accept(byte)
    assert not one.clone().accept(EOS)
    assert one.accept(ord('"'))
    assert one.done


def test_bytes_of_one_character_may_come_apart() -> None:
    one = grammar("json", {"type": "string"})
    first, second = "é".encode()
    assert one.accept(ord('"'))
    assert one.accept(first)
    assert ord('"') not in allowed(one)
    assert second in allowed(one)


def test_a_token_that_is_not_legal_changes_nothing() -> None:
    one = grammar("regex", "abc")
    assert one.accept(ord("a"))
    before = allowed(one)
    assert not one.accept(ord("c"))
    assert not one.accept(EOS)
    assert not one.error
    assert allowed(one) == before


def test_rollback_and_clones() -> None:
    one = grammar("regex", "ab(c|d)")
    other = one.clone()
    assert all(one.accept(byte) for byte in b"abc")
    assert one.done
    one.rollback(2)
    assert allowed(one) == {ord("b")}
    assert all(one.accept(byte) for byte in b"bd")
    assert allowed(other) == {ord("a")}


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("regex", "(", "unclosed group"),
        ("regex", "a(?=b)", "look-around"),
        ("json", {"type": "strin"}, "strin"),
        ("json", {"not": {"type": "string"}}, "not"),
        ("json", {"$ref": "#/nowhere"}, "nowhere"),
        ("json", {"$ref": "http://example.com/schema"}, "example.com"),
        ("json", {"type": "string", "format": "iri"}, "iri"),
        ("json", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ("lark", "start: x\nx: nothing_there", "nothing_there"),
        ("lark", "foo: /a/", "start"),
        ("lark", "%llguidance [1]\nstart: /a/", "options"),
        ("ebnf", 'root ::= ("a"', r"\)"),
    ],
)
def test_a_grammar_that_is_wrong_says_why(kind: str, value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        grammar(kind, value)
    assert caught.value.param == "grammar"
    assert "no_forcing" not in str(caught.value)  # what was added to it is not shown


def test_what_cannot_be_enforced_is_left_out_when_the_caller_says_so() -> None:
    one = grammar("json", {"type": "string", "format": "colour", "not": {"enum": ["x"]}}, lenient=True)
    assert takes(one, '"x"')
    assert not takes(one, "1")


@pytest.mark.parametrize("pattern", ["^(?!x)[a-z]$", r"\bx\b", "a$b", r"(x)\1"])
def test_patterns_that_no_automaton_has_are_left_out_when_the_caller_says_so(pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": pattern}, "b": {"type": "string", "pattern": "^[0-9]+$"}},
        "patternProperties": {pattern: {"type": "integer"}},
        "required": ["a", "b"],
    }
    with pytest.raises(RequestError, match="set strict to false"):
        grammar("json", schema)
    one = grammar("json", schema, lenient=True)
    assert takes(one, '{"a": "any", "b": "12"}')
    assert not takes(one, '{"a": "any", "b": "x"}')  # a pattern that can be enforced is
    lenient = json.dumps({**schema, "x-guidance": {"lenient": True, "whitespace_flexible": False}})
    assert takes(grammar("lark", f"start: %json {lenient}"), '{"a":"any","b":"12"}')
    with pytest.raises(RequestError, match="regex"):
        grammar("json", {"pattern": "("}, lenient=True)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"type": "integer", "enum": ["a"]}])
def test_advice_is_given_where_it_helps(schema: Any) -> None:
    with pytest.raises(RequestError) as caught:
        grammar("json", schema)
    assert (caught.value.expected, caught.value.fix) == ("one that some text satisfies", "")


def test_options_of_the_clients_own_lark_are_kept() -> None:
    for options in ('%llguidance {"allow_initial_skip": true}', '  %llguidance\n {"allow_initial_skip": true}'):
        assert takes(grammar("lark", options + '\n%ignore /x/\nstart: "a"'), "xa")


def test_a_vocabulary_without_an_end_ends_when_the_grammar_does() -> None:
    vocabulary = Vocabulary(tokens=TOKENS, special_ids=[], eos_token_ids=[], bos_token_id=None)
    one = GrammarCompiler(lambda: vocabulary).compile(encode_spec(GrammarSpec(kind="choice", value=["ab"])))
    assert one.accept(ord("a"))
    assert one.accept(ord("b"))
    assert one.done


def test_too_many_alternatives_are_refused_with_the_limit() -> None:
    many = {
        "anyOf": [{"type": "object", "properties": {f"p{j}": {"const": i * j} for j in range(20)}} for i in range(300)]
    }
    with pytest.raises(RequestError, match=r"limit|large"):
        grammar("json", many)
