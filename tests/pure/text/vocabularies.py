"""Tiny vocabularies made in memory: a byte-level BPE and a SentencePiece BPE, as files, as GGUF metadata and as
truth."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.text import TextTokenizer, tokenizer_from_gguf

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog did not mind at all.",
    "def f(x):\n    return x + 1  # adds one\n\n\nprint(f(41))\n\tif x:\n\t\tpass",
    "It's a test: don't you'll we've 12 345 6789 1.5e-3 $9.99 (100%) [a][b] {c}",
    "Größe, naïve, café, Ελληνικά, русский язык, עברית, العربية, हिन्दी",
    "你好世界。今天天气很好! 日本語のテキスト、한국어 문장",
    "emoji 🤗 👨‍👩‍👧‍👦 🇨🇭 ✈️ and math ∑∫≠≤ 𝔸𝔹",
    "<b>bold</b> <i>it</i>   spaces     and  more      ",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "   leading and trailing   ",
    "\n\n\r\n\t \n",
    "a" * 50 + "=" * 33 + " " * 40 + "x",
    "١٢٣ ½ Ⅷ ２４ 1234567",
    "\x00\x01\x7f\u0080\u00ad\u200b\ufeff\ufffd\U0010ffff",
    "e\u0301 vs \u00e9; ﬁ; Å vs Å",
    "HelloWorld fooBAR ABCdef isn'T WE'LL",
    "<|end|> <|start|>user<|end|> <unk> <s></s>",
]
SPECIAL = ("<|pad|>", "<|start|>", "<|end|>")


@lru_cache(maxsize=1)
def byte_level_vocabulary() -> tuple[list[str], list[str]]:
    """(tokens by id, merges). The first ids are SPECIAL."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def byte_level_metadata(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    """A GGUF file's tokenizer keys. `changes`: the last part of a key to its value, None removes it."""
    tokens, merges = byte_level_vocabulary()
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    return _changed(metadata, changes)


@lru_cache(maxsize=1)
def byte_level_tokenizer() -> TextTokenizer:
    return tokenizer_from_gguf(byte_level_metadata())


@lru_cache(maxsize=2)
def sentencepiece_model(prefix_space: bool) -> bytes:
    """A trained SentencePiece BPE model file, with byte fallback and some user-defined pieces."""
    import sentencepiece

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS[:4] * 3 for line in text.splitlines() if line]),
        model_writer=file,
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix_space,
        user_defined_symbols=["<b>", "</b>", "▁▁", "▁▁▁▁", "\n"],
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return file.getvalue()


def sentencepiece_metadata(prefix_space: bool, **changes: Any) -> dict[str, Any]:
    """The same vocabulary as GGUF metadata."""
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(sentencepiece_model(prefix_space))
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [p.piece.replace("▁", " ") if p.type == 4 else p.piece for p in proto.pieces],
        "tokenizer.ggml.scores": [p.score for p in proto.pieces],
        "tokenizer.ggml.token_type": [p.type for p in proto.pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": prefix_space,
    }
    return _changed(metadata, changes)


def write_folder(folder: Path, **files: Any) -> Path:
    """A model folder: file stem to JSON content, `tokenizer_model` to bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (folder / name.replace("_model", ".model")).write_bytes(content)
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        if value is None:
            metadata.pop(name, None)
        else:
            metadata[name] = value
    return metadata
