"""Schemas that say the same in other words than the library reads."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import RequestError
from paceline.text.grammar import GrammarCompiler, GrammarSpec, encode_spec
from paceline.text.grammar.json_schema import plain
from paceline.text.grammar.vocabulary import Vocabulary

EOS = 256
TOKENS = [*(bytes([i]) for i in range(256)), b"<eos>"]
COMPILER = GrammarCompiler(lambda: Vocabulary(tokens=TOKENS, special_ids=[EOS], eos_token_ids=[EOS], bos_token_id=None))


def takes(schema: Any, text: str) -> bool:
    one = COMPILER.compile(encode_spec(GrammarSpec(kind="json", value=schema))).clone()
    return all(one.accept(byte) for byte in text.encode()) and one.accepting


def test_whole_numbers_may_be_written_as_floats() -> None:
    schema = {"type": "string", "minLength": 2.0, "maxLength": 3.0}
    assert [takes(schema, f'"{"a" * n}"') for n in range(1, 5)] == [False, True, True, False]
    with pytest.raises(RequestError):
        takes({"type": "string", "minLength": 2.5}, '"aa"')


def test_a_format_that_no_standard_names_is_a_remark() -> None:
    schema = {
        "type": "object",
        "properties": {"format": {"type": "string", "format": "colour"}},
        "required": ["format"],
    }
    assert takes(schema, '{"format": "any at all"}')
    assert takes({"format": "int64"}, "7")
    with pytest.raises(RequestError, match="iri"):
        takes({"type": "string", "format": "iri"}, '"x"')
    assert not takes({"type": "string", "format": "date"}, '"x"')


def test_data_within_a_schema_is_left_alone() -> None:
    value = {"format": "x", "minLength": 1.0, "of": {"format": "y"}}
    for key in ("const", "default"):
        assert plain({key: value}) == {key: value}
    assert plain({"enum": [value]}) == {"enum": [value]}
    assert takes({"const": {"format": "x"}}, '{"format": "x"}')
