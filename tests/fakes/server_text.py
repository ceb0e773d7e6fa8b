"""Text for servers in tests: a byte-level vocabulary with some words, the same in every process; a chat template."""

from __future__ import annotations

from functools import cache
from typing import Any

from paceline.text import ChatTemplate, TextTokenizer, tokenizer_from_gguf
from paceline.text.byte_level import BYTE_ALPHABET

SPECIAL = ("<|pad|>", "<|start|>", "<|end|>")
EOS = 2
FIRST_BYTE = len(SPECIAL)  # the id of byte 0; byte b has id FIRST_BYTE + b
WORDS = (
    *("the", "and", "was", "ing", "er", "hello", "world", "stream", "token", "block", "river", "stone", "paper"),
    *(" the", " and", " of", " a", " in", " to", " is", " it", " for", " that", " we", " you", " said", " little"),
    *("é", "ü", "ñ", "中", "文", "字", "你", "好", "🙂", "🚀", "…", "\n\n", ". ", ", "),
)
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@cache
def toy_tokenizer() -> TextTokenizer:
    """Ids: three special tokens, 256 bytes, then words and their beginnings."""
    tokens, merges = _vocabulary()
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    return tokenizer_from_gguf(metadata)


def toy_template() -> ChatTemplate:
    return ChatTemplate({"default": TEMPLATE}, special_tokens=toy_tokenizer().special_tokens)


def toy_text() -> tuple[TextTokenizer, ChatTemplate]:
    return toy_tokenizer(), toy_template()


def _vocabulary() -> tuple[list[str], list[str]]:
    letters = [character for _, character in sorted((byte, chr(code)) for code, byte in BYTE_ALPHABET.items())]
    tokens, merges = [*SPECIAL, *letters], []
    for word in WORDS:
        first, *rest = [letters[b] for b in word.encode()]
        for letter in rest:
            if first + letter not in tokens:
                tokens.append(first + letter)
                merges.append(f"{first} {letter}")
            first += letter
    return tokens, merges
