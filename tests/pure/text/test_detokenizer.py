"""Streaming: however ids come in portions, the joined deltas are the final text, and nothing is taken back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.text.vocabularies import TEXTS, byte_level_tokenizer

from paceline.text import Detokenizer

TOKENIZER = byte_level_tokenizer()
TABLE = TOKENIZER.token_bytes()
IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30)
BYTE_IDS = [TABLE.index(bytes([b])) for b in range(256)]


def portions(items, cuts):
    """`items` cut at the places of `cuts`."""
    places = sorted({min(c, len(items)) for c in cuts} | {0, len(items)})
    return [items[a:b] for a, b in pairwise(places)]


CUTS = st.lists(st.integers(0, 80), max_size=12)


@given(st.text(max_size=40), CUTS, st.booleans())
def test_joined_deltas_of_any_text_are_the_text(text, cuts, by_bytes):
    ids = [BYTE_IDS[b] for b in text.encode()] if by_bytes else TOKENIZER.encode(text)
    detokenizer = Detokenizer(TOKENIZER)
    deltas = [detokenizer.push(portion) for portion in portions(ids, cuts)]
    deltas.append(detokenizer.finish())
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@given(IDS, CUTS, st.booleans())
def test_joined_deltas_of_any_ids_are_the_final_decode(ids, cuts, skip_special):
    detokenizer = Detokenizer(TOKENIZER, skip_special=skip_special)
    text = "".join(detokenizer.push(portion) for portion in portions(ids, cuts)) + detokenizer.finish()
    assert text == TOKENIZER.decode(ids, skip_special=skip_special, start_of_text=False)


@given(st.binary(max_size=24), CUTS)
def test_broken_bytes_show_one_mark_for_each_broken_part_whatever_the_portions(data, cuts):
    detokenizer = Detokenizer(TOKENIZER)
    text = "".join(detokenizer.push([BYTE_IDS[b] for b in part]) for part in portions(data, cuts))
    assert text + detokenizer.finish() == data.decode("utf-8", errors="replace")


@given(st.text(max_size=20), st.data())
def test_held_bytes_are_never_shown_early_and_a_cut_removes_them(text, data):
    ids = [BYTE_IDS[b] for b in text.encode()]
    detokenizer, shown, hold = Detokenizer(TOKENIZER), "", 0
    for seen, token in enumerate(ids, start=1):
        hold = data.draw(st.integers(0, min(seen, hold + 1)))  # a suffix that may be a stop grows by what came
        shown += detokenizer.push([token], hold_bytes=hold)
        assert text.encode()[: seen - hold].startswith(shown.encode())
    cut = data.draw(st.integers(0, hold))
    shown += detokenizer.finish(cut_bytes=cut)
    assert shown == text.encode()[: len(text.encode()) - cut].decode(errors="replace")


def test_a_character_waits_for_its_last_byte():
    detokenizer = Detokenizer(TOKENIZER)
    deltas = [detokenizer.push([BYTE_IDS[b]]) for b in "é🤗x".encode()]
    assert deltas == ["", "é", "", "", "", "🤗", "x"]
    assert detokenizer.finish() == ""


def test_an_unfinished_character_at_the_end_shows_one_mark():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push([BYTE_IDS[b] for b in "🤗".encode()[:3]]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_the_cut_counts_the_last_portion_too():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push(TOKENIZER.encode("hello wo"), hold_bytes=2) == "hello "
    assert detokenizer.finish(TOKENIZER.encode("rld"), cut_bytes=5) == ""


def test_shown_special_tokens_do_not_count_and_wait_with_what_is_before_them():
    detokenizer = Detokenizer(TOKENIZER, skip_special=False)
    x, end = TOKENIZER.encode("x")[0], TOKENIZER.eos_token_ids[0]
    assert detokenizer.push([end, x, end], hold_bytes=1) == "<|end|>"
    assert detokenizer.push([x], hold_bytes=1) == "x<|end|>"
    assert detokenizer.finish([end], cut_bytes=1) == ""


def test_holding_what_is_already_out_is_the_engines_fault():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push(TOKENIZER.encode("abc")) == "abc"
    with pytest.raises(AssertionError):
        detokenizer.finish(cut_bytes=1)


@pytest.mark.parametrize("text", TEXTS)
def test_token_by_token(text):
    detokenizer = Detokenizer(TOKENIZER)
    assert "".join(detokenizer.push([i]) for i in TOKENIZER.encode(text)) + detokenizer.finish() == text


def test_chosen_special_tokens_show_among_those_that_do_not():
    end = TOKENIZER.eos_token_ids[0]
    other = next(index for index in TOKENIZER.special_ids if index != end)
    detokenizer = Detokenizer(TOKENIZER, shown={end})
    x = TOKENIZER.encode("x")[0]
    assert detokenizer.push([other, end, x, end], hold_bytes=1) == "<|end|>"
    assert detokenizer.finish([other]) == "x<|end|>"
