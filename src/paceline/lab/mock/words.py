"""Tokens of the mock: one per word. A prompt of ids is the words `t<id>`, so text and ids can say the same.

A chat becomes the words of its messages, each after `template_tokens` markers, and the markers of the answer at the
end. So a conversation that goes on begins with the words it had before, and the prefix cache can find them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

VOCABULARY = 1 << 20
_WORD_IDS = 1 << 16  # ids below are `t<id>` only
_ANSWER_TEXT = (
    "the quick answer to this is that every word counts as one token and comes when its time has come so that "
    "what a client measures can be held against what was planned and nothing else has to be known about it"
)
ANSWER = tuple(_ANSWER_TEXT.split())


def answer_text(start: int, count: int) -> str:
    """Tokens `start` to `start + count` of every answer."""
    return "".join(_answer_word(i) for i in range(start, start + count))


def _answer_word(index: int) -> str:
    word = ANSWER[index % len(ANSWER)]
    return word if index == 0 else f" {word}"


def chat_words(messages: Sequence[dict[str, Any]], tools: str, template_tokens: int) -> list[str]:
    words = tools.split()
    for message in messages:
        words += marker(str(message.get("role", "user")), template_tokens)
        words += message_text(message).split()
    return words + marker("assistant", template_tokens)


def marker(role: str, template_tokens: int) -> list[str]:
    return [f"<|{role}|>"] * template_tokens


def message_text(message: dict[str, Any]) -> str:
    """Everything a message says: text, parts of text, arguments of calls."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        parts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, dict) else {}
        parts += [str(function.get("name", "")), str(function.get("arguments", ""))]
    return " ".join(parts)


def id_words(ids: Sequence[int]) -> list[str]:
    return [f"t{i}" for i in ids]


def word_id(word: str) -> int:
    """Stable between processes; `t<id>` is that id."""
    if word[0] == "t" and word[1:].isdecimal() and word.isascii() and len(word) < 9:
        return int(word[1:]) % VOCABULARY
    return _WORD_IDS + zlib.crc32(word.encode("utf-8", "surrogatepass")) % (VOCABULARY - _WORD_IDS)
