"""A text whose grammar says so is whole when its limit is reached; others are cut as ever."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.fakes.builders import EOS, VOCAB, make_request, scripted_engine
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.word_grammar import WordGrammar, compiler

from paceline.contracts.request import FinishReason
from paceline.engine.row_grammars import LED_MARGIN, LED_MARGIN_MOST, LED_WITHIN, Cursor, WayOut
from paceline.text.grammar.spec import decode_spec, encode_spec

TOKEN_BYTES = letter_bytes(VOCAB, (EOS,))
FACTORY = compiler(TOKEN_BYTES, EOS)
WORDS = WordGrammar((b"abcd", b"bbbbbb"), 1, None)


def request(request_id: int, num_tokens: int, *, finish: bool, **more: Any) -> Any:
    grammar = encode_spec(msgspec.structs.replace(decode_spec(WORDS.spec), finish=finish))
    how = {"grammar": grammar, "temperature": 1.0, "seed": request_id, "sampling": {"ignore_eos": False}}
    return make_request(request_id, [1, 2, 3], num_tokens, **{**how, **more})


@pytest.mark.parametrize("num_tokens", [8, 13, 20, 40])
def test_it_is_whole_within_the_limit(num_tokens: int) -> None:
    ids = range(6)
    cut = scripted_engine(grammars=FACTORY).run(*(request(i, num_tokens, finish=False) for i in ids))
    led = scripted_engine(grammars=FACTORY).run(*(request(i, num_tokens, finish=True) for i in ids))
    assert any(each.reason == FinishReason.LENGTH for each in cut.values())
    for each in led.values():
        assert each.reason == FinishReason.STOP, each
        assert len(each.token_ids) <= num_tokens
        tokens = each.token_ids[:-1] if each.token_ids[-1] == EOS else each.token_ids
        assert WORDS.whole(b"".join(TOKEN_BYTES[token] for token in tokens))


def test_far_from_the_limit_nothing_changes() -> None:
    """The tokens are those of the same grammar without it, up to where the way out begins."""
    for seed in range(4):
        plain = scripted_engine(grammars=FACTORY).run(request(seed, 40, finish=False))[seed]
        led = scripted_engine(grammars=FACTORY).run(request(seed, 40, finish=True))[seed]
        same = 40 - LED_MARGIN - 8
        assert led.token_ids[:same] == plain.token_ids[:same]


def test_a_limit_that_no_whole_text_fits_cuts_it() -> None:
    found = scripted_engine(grammars=FACTORY).run(request(0, 2, finish=True))[0]
    assert (found.reason, len(found.token_ids)) == (FinishReason.LENGTH, 2)


class Count:
    """A grammar that needs `need` tokens more, wherever it is, and says how often it was asked."""

    def __init__(self, need: int | None) -> None:
        self.need, self.asked = need, 0
        self.accepting = need == 0

    def way_out(self, most: int, *, further: bool = False) -> list[int] | None:
        self.asked += 1
        return None if self.need is None or self.need > most else [7] * self.need


@pytest.mark.parametrize(("need", "most"), [(1, 12), (30, 12), (200, 12), (None, 12)])
def test_it_is_looked_rarely_while_there_is_room(need: int | None, most: int) -> None:
    way, grammar = WayOut(LED_WITHIN), Count(need)
    for left in range(4000, 0, -1):
        way.look(grammar, left)  # type: ignore[arg-type]
        if way.tokens:
            assert need is not None
            assert left >= need + 1
            assert left <= need + 1 + LED_MARGIN + 1
            break
    assert bool(way.tokens) == (need is not None)
    assert grammar.asked <= most


def test_a_long_answer_has_a_larger_margin_for_an_item_that_requires_much() -> None:
    """One comma may add many tokens to the way, and short answers are not led from their beginning."""
    margins = {}
    for limit in (40, 100, 256, 4096):
        grammar = FACTORY.compile(encode_spec(msgspec.structs.replace(decode_spec(WORDS.spec), finish=True)))
        cursor = Cursor(
            grammar=grammar,
            anew=grammar.clone,
            tokens=[],
            stop_ids=frozenset(),
            stop_words=np.zeros(1, np.uint32),
            eos_words=np.zeros(1, np.uint32),
            text_words=np.zeros(1, np.uint32),
            limit=limit,
        )
        margins[limit] = cursor.way.margin
    assert margins == {40: LED_MARGIN, 100: 10, 256: LED_MARGIN_MOST, 4096: LED_MARGIN_MOST}
    assert WayOut(LED_WITHIN, 24, [3]).copy() == WayOut(LED_WITHIN, 24, [3])
