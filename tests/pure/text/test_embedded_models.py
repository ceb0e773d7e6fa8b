"""The embedded models' vocabularies, built from their GGUF files, against the libraries they were made with."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest
from tests.pure.text.vocabularies import TEXTS

from paceline import hub
from paceline.config import read_environment
from paceline.hub.gguf_file import GGUFFile
from paceline.text import ChatTemplate, Detokenizer, TextTokenizer, load_tokenizer
from paceline.text.sentencepiece_bpe import PieceType


@lru_cache(maxsize=2)
def embedded(name: str) -> tuple[str, TextTokenizer]:
    path = str(hub.resolve(name, read_environment().home, download=False).path)
    return path, load_tokenizer(path)


def wide_corpus(count: int) -> list[str]:
    """Scripts, code, digits, runs of one character, raw code points, and special tokens in text."""
    draw = random.Random(20)
    words = [
        "the ",
        "ing",
        " of",
        "<b>",
        "</b>",
        "<table>",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "12",
        "don't",
        "<bos>",
        "<|im_end|>",
    ]
    letters = [chr(c) for c in range(32, 127)] + list(
        "\n\t\r éüßñ你好世界한국어日本語ひらがなاللغةहिन्दी🤗👨‍👩‍👧‍👦𝔸∑∫\u200b\u00a0\u3000▁"
    )
    texts = list(TEXTS)
    for _ in range(count):
        kind, size = draw.randrange(4), draw.randint(1, 50)
        if kind == 0:
            texts.append("".join(draw.choice(words) for _ in range(size)))
        elif kind == 1:
            texts.append("".join(draw.choice(letters) for _ in range(size)))
        elif kind == 2:
            texts.append("".join(draw.choice("a= -\n\t") * draw.randint(1, 40) for _ in range(size // 5 + 1)))
        else:
            texts.append(
                "".join(
                    chr(draw.choice((draw.randint(32, 0xD7FF), draw.randint(0xE000, 0x1FFFF)))) for _ in range(size)
                )
            )
    return texts


@pytest.mark.model("smollm2-135m")
def test_smollm2_has_the_ids_of_its_tokenizer_json():
    """SmolLM2's file: single digits, then GPT-2's split; control tokens found only when asked for."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    path, ours = embedded("smollm2-135m")
    metadata = GGUFFile(path).metadata
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    vocab = {token: index for index, token in enumerate(tokens)}
    truth = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
    truth.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in range(17)])
    truth.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in wide_corpus(1500):
        assert ours.encode(text, parse_special=True) == truth.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == text
    assert (ours.vocab_size, ours.bos_token_id, ours.eos_token_ids) == (49152, 1, (2, 0))
    assert ours.encode("Hello") == [19556]  # add_bos_token is false in this file


@pytest.mark.model("gemma3-270m")
def test_gemma3_has_the_ids_of_sentencepiece():
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    from sentencepiece import sentencepiece_model_pb2

    path, ours = embedded("gemma3-270m")
    metadata = GGUFFile(path).metadata
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id, proto.trainer_spec.eos_id = 3, 2, 1
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = proto.normalizer_spec.remove_extra_whitespaces = False
    types = metadata["tokenizer.ggml.token_type"].tolist()
    columns = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"].tolist(), types
    for token, score, kind in zip(*columns, strict=True):
        marked = token.replace(" ", "▁") if kind == PieceType.USER_DEFINED else token
        proto.pieces.add(piece=marked, score=score, type=kind)
    truth = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    for text in wide_corpus(3000):
        ids = truth.encode(text)
        assert ours.encode(text) == [2, *ids], text
        assert ours.decode(ids) == truth.decode(ids) == text.replace("▁", " ")
    assert (ours.vocab_size, ours.eos_token_ids) == (262144, (1, 106))
    assert ours.encode("<start_of_turn>x<bos>", parse_special=True) == [2, 105, ours.token_id("x"), 2]


@pytest.mark.model("smollm2-135m")
def test_smollm2_streams_any_text_token_by_token():
    _, tokenizer = embedded("smollm2-135m")
    for text in wide_corpus(200):
        detokenizer = Detokenizer(tokenizer)
        assert "".join(detokenizer.push([i]) for i in tokenizer.encode(text)) + detokenizer.finish() == text


@pytest.mark.model("smollm2-135m")
def test_smollm2_brings_its_chat_template():
    path, tokenizer = embedded("smollm2-135m")
    template = ChatTemplate.load(path, special_tokens=tokenizer.special_tokens)
    text = template.render([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    assert [ids.count(i) for i in (1, 2)] == [3, 2]


@pytest.mark.model("gemma3-270m")
def test_gemma3_270m_is_a_base_model():
    path, _ = embedded("gemma3-270m")
    assert not ChatTemplate.load(path).available
