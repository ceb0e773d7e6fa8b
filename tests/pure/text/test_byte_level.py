"""Byte-level BPE: splits, merges, and the byte alphabet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.text.vocabularies import TEXTS, byte_level_metadata, byte_level_tokenizer, byte_level_vocabulary

from paceline.errors import ModelError, UnsupportedError
from paceline.text import tokenizer_from_gguf
from paceline.text.byte_level import BYTE_ALPHABET, SPLIT_KINDS, byte_level_bytes


def original(*splits):
    """The vocabulary with a pre-tokenizer put together from the library's own parts, as the models' files do it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens, merges = byte_level_vocabulary()
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    return backend


def gpt2_original():
    from tokenizers import pre_tokenizers

    return original(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def smollm_original():
    from tokenizers import pre_tokenizers

    return original(
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    )


@pytest.mark.parametrize(("pre", "truth"), [("gpt-2", gpt2_original), ("smollm", smollm_original)])
def test_ids_equal_the_original_tokenizer(pre, truth):
    ours, theirs = tokenizer_from_gguf(byte_level_metadata(pre)), truth()
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids, text


@given(st.text())
def test_text_comes_back_from_its_ids(text):
    tokenizer = byte_level_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def words(pre, text):
    backend = tokenizer_from_gguf(byte_level_metadata(pre)).backend
    return [byte_level_bytes(word).decode() for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's 1234  ok", ["it", "'s", " 1234", " ", " ok"]),
        ("smollm", "it's  1234", ["it", "'s", "  ", "1", "2", "3", "4"]),
        ("llama-bpe", "IT'S 12345.\n\n x", ["IT", "'S", " ", "123", "45", ".\n\n", " x"]),
        ("qwen2", "it's 1234 \n x", ["it", "'s", " ", "1", "2", "3", "4", " \n", " x"]),
        ("qwen35", "e\u0323x 12", ["e\u0323x", " ", "1", "2"]),
        ("tekken", "fooBar 12/\n", ["foo", "Bar", " ", "1", "2", "/\n"]),
        ("gpt-4o", "fooBar's 1234/\n", ["foo", "Bar's", " ", "123", "4", "/\n"]),
        ("deepseek-v3", "x=1234日本abc (d)", ["x", "=", "123", "4", "日本", "abc", " (", "d", ")"]),
    ],
)
def test_each_kind_splits_as_its_models_do(pre, text, expected):
    assert words(pre, text) == expected


@pytest.mark.parametrize("pre", sorted(SPLIT_KINDS))
def test_every_known_split_loses_no_text(pre):
    tokenizer = tokenizer_from_gguf(byte_level_metadata(pre))
    for text in TEXTS:
        if not SPLIT_KINDS[pre].nfc:
            assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_qwen_text_is_brought_to_normal_form_c():
    tokenizer = tokenizer_from_gguf(byte_level_metadata("qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")
    assert (
        tokenizer_from_gguf(byte_level_metadata("deepseek-r1-qwen")).decode(
            tokenizer_from_gguf(byte_level_metadata("deepseek-r1-qwen")).encode("e\u0301")
        )
        == "e\u0301"
    )


def test_a_word_of_the_vocabulary_is_taken_whole_where_the_model_does_so():
    tokens, merges = byte_level_vocabulary()
    grown = [*tokens, "Ġzqzqz"]
    types = [1] * len(grown)
    whole = tokenizer_from_gguf(byte_level_metadata("llama-bpe", tokens=grown, token_type=types))
    merged = tokenizer_from_gguf(byte_level_metadata("gpt-2", tokens=grown, token_type=types))
    assert whole.encode(" zqzqz", add_special=False) == [len(tokens)]
    assert len(merged.encode(" zqzqz")) > 1
    assert merges


def test_an_unknown_split_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="'no-such-split'"):
        tokenizer_from_gguf(byte_level_metadata("no-such-split"))


@pytest.mark.parametrize("merge", ["alone", " x", "x ", "zzz yyy"])
def test_a_broken_merge_is_a_model_error(merge):
    with pytest.raises(ModelError):
        tokenizer_from_gguf(byte_level_metadata(merges=[merge]))


def test_the_alphabet_names_each_byte_once():
    from tokenizers import pre_tokenizers

    assert sorted(BYTE_ALPHABET.values()) == list(range(256))
    assert {chr(c) for c in BYTE_ALPHABET} == set(pre_tokenizers.ByteLevel.alphabet())
    for text in TEXTS:
        for word, _ in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text):
            assert byte_level_bytes(word) == text.encode()
