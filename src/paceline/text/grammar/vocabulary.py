"""The vocabulary as llguidance wants it: bytes of every id, which of them are special, which end a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import llguidance

    from paceline.text.tokenizer import TextTokenizer


class Vocabulary(msgspec.Struct, frozen=True):
    """`tokens[id]`: the bytes an id adds to a text; for a special one, its name. Ids that stand for nothing have no
    bytes and are never allowed. Special ids never match text: "<|im_end|>" in a JSON string is spelled by ordinary ids.
    """

    tokens: list[bytes]
    special_ids: list[int]
    eos_token_ids: list[int]
    bos_token_id: int | None


def vocabulary_of(tokenizer: TextTokenizer, vocab_size: int, eos_token_ids: list[int]) -> Vocabulary:
    """`vocab_size` is the model's: it may be larger than the tokenizer's, padded with ids that stand for nothing."""
    known = min(vocab_size, tokenizer.vocab_size)
    return Vocabulary(
        tokens=[tokenizer.bytes_of(i) for i in range(known)] + [b""] * (vocab_size - known),
        special_ids=sorted(i for i in tokenizer.special_ids if i < vocab_size),
        eos_token_ids=eos_token_ids,
        bos_token_id=tokenizer.bos_token_id,
    )


def build_tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """Takes some tenths of a second for a large vocabulary. One without an end-of-sequence id gets an id that stands
    for nothing in its place; an answer then ends when its grammar is complete, or at its limit."""
    from llguidance import LLTokenizer

    wrapper: Any = _Wrapper(vocabulary)
    return LLTokenizer(wrapper, n_vocab=len(vocabulary.tokens), eos_token=_eos(vocabulary))


def _eos(vocabulary: Vocabulary) -> list[int]:
    if vocabulary.eos_token_ids:
        return vocabulary.eos_token_ids
    return [next((i for i, data in enumerate(vocabulary.tokens) if not data), 0)]


class _Wrapper:
    """The attributes llguidance reads. It asks for the ids of a text only to force tokens, which is switched off."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = _eos(vocabulary)[0]
        self.bos_token_id = vocabulary.bos_token_id
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids

    def __call__(self, text: str | bytes) -> list[int]:
        return []
