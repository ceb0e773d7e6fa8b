"""The tokenizer and the chat templates that the metadata of a GGUF file describes.

GGUF keeps a vocabulary as lists: tokens, types, and merges (byte-level BPE) or scores (SentencePiece). How text is
split and where spaces go is told by name or by flag; what a file does not tell follows llama.cpp's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import ModelError, UnsupportedError
from paceline.text.byte_level import build_byte_level, byte_level_bytes, split_kind
from paceline.text.sentencepiece_bpe import PieceType, add_typed_tokens, build_sentencepiece, sentencepiece_bytes
from paceline.text.tokenizer import TextTokenizer

# Control tokens by which chat and base models end. Files often name only one of them.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> TextTokenizer:
    """The tokenizer that a GGUF file's metadata describes. Raises as `load_tokenizer` does."""
    kind = _typed(metadata, "tokenizer.ggml.model", str, "a string", None)
    if kind is None or "tokenizer.ggml.tokens" not in metadata:
        raise ModelError("this GGUF file has no tokenizer", fix="use a file that holds the whole model")
    pieces = _strings(metadata, "tokenizer.ggml.tokens")
    types = _numbers(metadata, "tokenizer.ggml.token_type", [int(PieceType.NORMAL)] * len(pieces))
    if len(types) != len(pieces):
        raise ModelError(
            "tokenizer.ggml.token_type does not fit the vocabulary",
            seen=f"{len(types)} types for {len(pieces)} tokens",
            fix="download the file again",
        )
    ends = _end_ids(metadata, pieces, types)
    if kind == "gpt2":
        split = split_kind(_typed(metadata, "tokenizer.ggml.pre", str, "a string", "default"))
        if "tokenizer.ggml.merges" not in metadata:
            raise ModelError("this GGUF file has a BPE vocabulary without merges", fix="use a newer file of this model")
        backend = build_byte_level(pieces, _strings(metadata, "tokenizer.ggml.merges"), split)
        piece_bytes, add_bos, strip_space = byte_level_bytes, split.add_bos, False
    elif kind == "llama":
        strip_space = _typed(metadata, "tokenizer.ggml.add_space_prefix", bool, "true or false", True)
        scores = _numbers(metadata, "tokenizer.ggml.scores", [])
        backend = build_sentencepiece(pieces, scores, types, prefix_space=strip_space)
        piece_bytes, add_bos = sentencepiece_bytes, True
    else:
        raise UnsupportedError(
            "the tokenizer of this GGUF file is of a kind that paceline does not build",
            seen=f"tokenizer.ggml.model = {kind!r}",
            expected="gpt2 (byte-level BPE) or llama (SentencePiece BPE)",
            fix="use the model's Hugging Face folder with its tokenizer.json",
        )
    add_typed_tokens(backend, pieces, types)
    return TextTokenizer(
        backend,
        vocab_size=len(pieces),
        piece_bytes=piece_bytes,
        pieces=pieces,
        special_tokens=_gguf_roles(metadata, pieces),
        eos_token_ids=ends,
        add_bos=_typed(metadata, "tokenizer.ggml.add_bos_token", bool, "true or false", add_bos),
        add_eos=_typed(metadata, "tokenizer.ggml.add_eos_token", bool, "true or false", False),
        strip_space=strip_space,
        replace_marks=kind == "llama",
    )


def _typed(metadata: Mapping[str, Any], key: str, kind: type, expected: str, default: Any) -> Any:
    """The value under `key`, `default` without one. Raises ModelError when it is not of `kind`."""
    value = metadata.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(key, value, expected)
    return value


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata[key]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _wrong(key, values, "an array of strings")
    return values


def _numbers(metadata: Mapping[str, Any], key: str, default: list[Any]) -> list[Any]:
    """A list of Python numbers from a list or an array."""
    values = metadata.get(key, default)
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise _wrong(key, values, "an array of numbers")
    return values


def _token_id(metadata: Mapping[str, Any], key: str, pieces: Sequence[str]) -> int | None:
    """None for an id outside the vocabulary: some files mean "none" by one."""
    token_id = _typed(metadata, f"tokenizer.ggml.{key}_token_id", int, "a token id", None)
    return token_id if token_id is not None and 0 <= token_id < len(pieces) else None


def _wrong(key: str, value: object, expected: str) -> ModelError:
    return ModelError(
        f"this GGUF file has a {key!r} of the wrong type",
        seen=f"{type(value).__name__}: {value!r:.80}",
        expected=expected,
        fix="download the file again",
    )


def _end_ids(metadata: Mapping[str, Any], pieces: Sequence[str], types: list[int]) -> list[int]:
    """Ids that end a text. A well-known end token that the file calls user-defined is made a control token here."""
    ends = []
    for key in ("eos", "eot", "eom"):
        if (token_id := _token_id(metadata, key, pieces)) is not None:
            ends.append(token_id)
    marked = (PieceType.CONTROL, PieceType.USER_DEFINED)
    ends += [index for index, kind in enumerate(types) if kind in marked and pieces[index] in END_TOKENS]
    for index in ends:
        types[index] = PieceType.CONTROL
    return ends


def _gguf_roles(metadata: Mapping[str, Any], pieces: Sequence[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    roles = {}
    for role, key in names.items():
        if (token_id := _token_id(metadata, key, pieces)) is not None:
            roles[role] = pieces[token_id]
    return roles


def templates_from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name out of a GGUF file's metadata."""
    prefix = "tokenizer.chat_template"
    names = {prefix: "default"} | {key: key[len(prefix) + 1 :] for key in metadata if key.startswith(prefix + ".")}
    return {name: _typed(metadata, key, str, "a string", "") for key, name in names.items() if key in metadata}
