"""SentencePiece BPE from GGUF metadata and from tokenizer.model, against the SentencePiece library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.text.vocabularies import TEXTS, sentencepiece_metadata, sentencepiece_model, write_folder

from paceline.errors import ModelError, UnsupportedError
from paceline.text import load_tokenizer, tokenizer_from_gguf
from paceline.text.sentencepiece_bpe import merges_of, sentencepiece_bytes

sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("google.protobuf")

_built = {prefix: tokenizer_from_gguf(sentencepiece_metadata(prefix)) for prefix in (False, True)}
_truth = {p: sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(p)) for p in (False, True)}
MARKED = ("<b>", "</b>", "\n", "  ")  # user-defined: no space is put before or after them, which the library does


def plain(text):
    return not any(mark in text.replace("▁", " ") for mark in MARKED) and "\0" not in text


@pytest.mark.parametrize("text", TEXTS)
def test_without_a_prefix_space_ids_equal_the_library(text):
    assert _built[False].encode(text, add_special=False) == _truth[False].encode(text)


@pytest.mark.parametrize("text", [t for t in TEXTS if plain(" " + t)])
def test_with_a_prefix_space_ids_and_text_equal_the_library(text):
    ids = _truth[True].encode(text)
    assert _built[True].encode(text, add_special=False) == ids
    assert _built[True].decode(ids) == _truth[True].decode(ids) == text


spelled = st.text(alphabet=st.sampled_from([*"aeiou thrnd=.<b>/\n▁é你🤗\u0000\U0010ffff"]))


@given(spelled | st.text())
def test_any_text_has_the_ids_of_the_library(text):
    assert _built[False].encode(text, add_special=False) == _truth[False].encode(text)
    assert _built[False].decode(_truth[False].encode(text)) == text.replace("▁", " ")


@given(st.text(alphabet=st.sampled_from(list("aeiou thrndé你"))).filter(lambda t: plain(" " + t)))
def test_the_prefix_space_is_added_and_taken_off(text):
    ids = _truth[True].encode(text)
    assert _built[True].encode(text, add_special=False) == ids
    assert _built[True].decode(ids) == text


def test_decode_leaves_the_space_of_ids_that_continue_a_text():
    tokenizer = _built[True]
    ids = tokenizer.encode("the dog", add_special=False)
    assert tokenizer.decode(ids) == "the dog"
    assert tokenizer.decode(ids, start_of_text=False) == " the dog"


@pytest.mark.parametrize("prefix", [False, True])
def test_tokenizer_model_gives_what_gguf_gives(tmp_path, prefix):
    folder = write_folder(tmp_path / "m", tokenizer_model=sentencepiece_model(prefix))
    loaded = load_tokenizer(folder)
    for text in TEXTS:
        assert loaded.encode(text) == _built[prefix].encode(text)
    assert (loaded.bos_token_id, loaded.eos_token_ids, loaded.vocab_size) == (1, (2,), 500)
    assert list(loaded.token_bytes()) == list(_built[prefix].token_bytes())
    assert load_tokenizer(folder / "tokenizer.model").encode("the fox") == loaded.encode("the fox")


def test_a_unigram_model_is_refused(tmp_path):
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(sentencepiece_model(False))
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    with pytest.raises(UnsupportedError, match="UNIGRAM"):
        load_tokenizer(write_folder(tmp_path / "m", tokenizer_model=proto.SerializeToString()))


def test_a_broken_model_file_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.model"):
        load_tokenizer(write_folder(tmp_path / "m", tokenizer_model=b"\xff\xfe not a model"))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ModelError, match=r"paceline\[sentencepiece\]"):
        load_tokenizer(write_folder(tmp_path / "m", tokenizer_model=sentencepiece_model(False)))


def test_scores_and_types_must_fit_the_pieces():
    with pytest.raises(ModelError, match="differ in length"):
        tokenizer_from_gguf(sentencepiece_metadata(False, scores=[0.0]))
    with pytest.raises(ModelError, match="token_type"):
        tokenizer_from_gguf(sentencepiece_metadata(False, token_type=[1]))


def test_merges_are_all_cuts_into_normal_pieces_best_first():
    pieces, scores = ["a", "b", "ab", "aba", "ba", "<x>"], [-9.0, -9.0, -1.0, -3.0, -2.0, 0.0]
    assert merges_of(pieces, scores, [1, 1, 1, 1, 1, 4]) == [("a", "b"), ("b", "a"), ("a", "ba"), ("ab", "a")]


def test_piece_bytes():
    assert sentencepiece_bytes("▁a▁") == b" a "
    assert sentencepiece_bytes("<0xE4>") == b"\xe4"
    assert sentencepiece_bytes("<0xZZ>") == b"<0xZZ>"
