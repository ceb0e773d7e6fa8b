"""The tokenizer over any vocabulary: special tokens, BOS and EOS, bytes of tokens, files and their faults."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.text.vocabularies import (
    SPECIAL,
    TEXTS,
    byte_level_metadata,
    byte_level_tokenizer,
    sentencepiece_metadata,
    write_folder,
)

from paceline.errors import ModelError, RequestError, UnsupportedError
from paceline.text import load_tokenizer, tokenizer_from_gguf


def tokenizer_json(metadata=None, **changes):
    """tokenizer.json of a tiny vocabulary, with some of its parts changed."""
    return {**json.loads(tokenizer_from_gguf(metadata or byte_level_metadata()).backend.to_str()), **changes}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def byte_level_folder(path, config=None, **files):
    files = {"tokenizer": tokenizer_json(decoder=BYTE_LEVEL), "tokenizer_config": config or {}, **files}
    return write_folder(path, **files)


# Special tokens


def test_special_tokens_in_text_are_text_unless_asked_for():
    tokenizer = byte_level_tokenizer()
    text = "a<|end|>b"
    assert tokenizer.encode(text, parse_special=True)[1] == 2
    plain = tokenizer.encode(text)
    assert not set(plain) & tokenizer.special_ids
    assert tokenizer.decode(plain) == text


def test_user_defined_tokens_are_found_in_any_text():
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    metadata = byte_level_metadata(
        tokens=[*tokens, "<think>", "two words"], token_type=[*byte_level_metadata()["tokenizer.ggml.token_type"], 4, 4]
    )
    tokenizer = tokenizer_from_gguf(metadata)
    ids = tokenizer.encode("x<think>two words!")
    assert ids[1:3] == [len(tokens), len(tokens) + 1]
    assert tokenizer.decode(ids) == "x<think>two words!"
    assert tokenizer.token_bytes()[len(tokens) + 1] == b"two words"


def test_special_tokens_add_no_text_and_are_shown_on_request():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("<|start|>hi<|end|>", parse_special=True)
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special=False) == "<|start|>hi<|end|>"
    assert [tokenizer.token_bytes()[tokenizer.token_id(t)] for t in SPECIAL] == [b""] * 3


@given(st.lists(st.sampled_from([*SPECIAL, "<|", "|>", "end", " ", "é", "x"]), max_size=8).map("".join))
def test_with_special_tokens_shown_nothing_is_lost(text):
    tokenizer = byte_level_tokenizer()
    for parse in (False, True):
        assert tokenizer.decode(tokenizer.encode(text, parse_special=parse), skip_special=False) == text


def test_a_known_end_token_counts_as_control_even_when_the_file_says_user_defined():
    metadata = byte_level_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|im_end|>"]
    tokenizer = tokenizer_from_gguf(
        byte_level_metadata(tokens=tokens, token_type=[*metadata["tokenizer.ggml.token_type"], 4])
    )
    assert tokenizer.eos_token_ids == (2, len(tokens) - 1)
    assert len(tokens) - 1 in tokenizer.special_ids
    assert len(tokens) - 1 not in tokenizer.encode("a<|im_end|>")


# BOS and EOS


@pytest.mark.parametrize(("bos", "eos"), [(False, False), (True, False), (False, True), (True, True)])
def test_gguf_flags_say_what_is_put_around_text(bos, eos):
    tokenizer = tokenizer_from_gguf(byte_level_metadata(add_bos_token=bos, add_eos_token=eos))
    inner = byte_level_tokenizer().encode("the dog")
    assert tokenizer.encode("the dog") == [1] * bos + inner + [2] * eos
    assert tokenizer.encode("the dog", add_special=False) == inner
    assert tokenizer.encode("") == [1] * bos + [2] * eos


def test_without_a_flag_sentencepiece_and_llama3_add_bos_and_gpt2_does_not():
    assert tokenizer_from_gguf(sentencepiece_metadata(True, add_bos_token=None)).encode("")[:1] == [1]
    assert tokenizer_from_gguf(byte_level_metadata("llama-bpe", add_bos_token=None)).encode("") == [1]
    assert tokenizer_from_gguf(byte_level_metadata("gpt-2", add_bos_token=None)).encode("") == []


def test_a_flag_without_a_bos_token_adds_nothing():
    tokenizer = tokenizer_from_gguf(byte_level_metadata(add_bos_token=True, bos_token_id=None))
    assert tokenizer.bos_token_id is None
    assert tokenizer.encode("") == []


# Hugging Face folders


def test_a_folder_gives_the_ids_of_its_tokenizer_json(tmp_path):
    loaded = load_tokenizer(byte_level_folder(tmp_path))
    for text in TEXTS:
        assert loaded.encode(text) == byte_level_tokenizer().encode(text)
        assert loaded.decode(loaded.encode(text)) == text
    assert list(loaded.token_bytes()) == list(byte_level_tokenizer().token_bytes())


def test_a_sentencepiece_folder_decodes_as_its_decoder_says(tmp_path):
    pytest.importorskip("sentencepiece")
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    content = tokenizer_json(sentencepiece_metadata(True), decoder={"type": "Sequence", "decoders": steps})
    loaded = load_tokenizer(write_folder(tmp_path, tokenizer=content))
    ids = loaded.encode("the dog 🤗", add_special=False)
    assert loaded.decode(ids) == loaded.backend.decode(ids) == "the dog 🤗"
    assert loaded.strip_space


def test_an_unknown_decoder_is_refused(tmp_path):
    folder = byte_level_folder(
        tmp_path, tokenizer=tokenizer_json(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    )
    with pytest.raises(UnsupportedError, match="WordPiece"):
        load_tokenizer(folder)


def test_config_flags_go_before_the_post_processor(tmp_path):
    roles = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|pad|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|pad|>": {"id": "<|pad|>", "ids": [0], "tokens": ["<|pad|>"]}},
    }
    content = tokenizer_json(decoder=BYTE_LEVEL, post_processor=template)
    inner = byte_level_tokenizer().encode("hi")
    silent = load_tokenizer(byte_level_folder(tmp_path / "a", config=roles, tokenizer=content))
    assert silent.encode("hi") == [0, *inner]
    flagged = load_tokenizer(
        byte_level_folder(tmp_path / "b", config={**roles, "add_bos_token": True}, tokenizer=content)
    )
    assert flagged.encode("hi") == [1, *inner]
    assert flagged.encode("hi", add_special=False) == inner
    assert flagged.special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}


def test_truncation_and_padding_of_a_file_are_switched_off(tmp_path):
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    loaded = load_tokenizer(byte_level_folder(tmp_path, tokenizer=tokenizer_json(decoder=BYTE_LEVEL, truncation=cut)))
    assert loaded.decode(loaded.encode(TEXTS[0])) == TEXTS[0]


def test_all_files_that_name_an_end_are_heard(tmp_path):
    roles = {"eos_token": "<|end|>"}
    both = byte_level_folder(tmp_path / "a", config=roles, generation_config={"eos_token_id": [7, 2]})
    assert load_tokenizer(both).eos_token_ids == (7, 2)
    write_folder(tmp_path / "b", config={"eos_token_id": 9})
    assert load_tokenizer(byte_level_folder(tmp_path / "b", config=roles)).eos_token_ids == (9, 2)
    assert load_tokenizer(byte_level_folder(tmp_path / "c", config=roles)).eos_token_ids == (2,)


def test_ids_of_the_padded_embedding_add_no_text(tmp_path):
    write_folder(tmp_path, config={"vocab_size": 1024})
    loaded = load_tokenizer(byte_level_folder(tmp_path))
    assert loaded.vocab_size == len(loaded.token_bytes()) == 1024
    assert loaded.decode([1023, 5000, *loaded.encode("x")], skip_special=False) == "x"


def test_tokens_listed_beside_the_vocabulary_are_added(tmp_path):
    size = byte_level_tokenizer().vocab_size
    config = {"added_tokens_decoder": {str(size): {"content": "<|tool|>", "special": True}}}
    loaded = load_tokenizer(byte_level_folder(tmp_path / "a", config=config))
    assert loaded.encode("<|tool|>", parse_special=True) == [size]
    config = {"added_tokens_decoder": {str(size + 5): {"content": "<|tool|>", "special": True}}}
    with pytest.raises(ModelError, match=r"<\|tool\|>"):
        load_tokenizer(byte_level_folder(tmp_path / "b", config=config))
    with pytest.raises(ModelError, match="added_tokens_decoder"):
        load_tokenizer(byte_level_folder(tmp_path / "c", config={"added_tokens_decoder": {"x": "y"}}))


# Faults


def test_missing_and_broken_files_are_model_errors(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"tokenizer\.json or tokenizer\.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot read the tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ModelError, match="no JSON object"):
        load_tokenizer(tmp_path)


def test_gguf_kinds_that_cannot_be_built_are_refused():
    with pytest.raises(UnsupportedError, match="'bert'"):
        tokenizer_from_gguf(byte_level_metadata(model="bert"))
    with pytest.raises(ModelError, match="no tokenizer"):
        tokenizer_from_gguf({})
    with pytest.raises(ModelError, match="without merges"):
        tokenizer_from_gguf(byte_level_metadata(merges=None))


def test_half_a_surrogate_pair_is_refused_with_its_place():
    with pytest.raises(RequestError, match=r"U\+D83E at character 2"):
        byte_level_tokenizer().encode("ab\ud83e")


@pytest.mark.parametrize("key", sorted(byte_level_metadata()))
@pytest.mark.parametrize("item", [2.5, ["a"], np.ones(2)], ids=["float", "strings", "array"])
def test_a_vocabulary_key_of_the_wrong_type_is_a_model_error_with_its_key(key, item):
    if key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges") and isinstance(item, list):
        item = [1]
    with pytest.raises(ModelError, match=key.rsplit(".")[-1]):
        tokenizer_from_gguf(byte_level_metadata() | {key: item})
