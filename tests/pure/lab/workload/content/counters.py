"""Counters that behave like tokenizers the word counter is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from paceline.errors import LabError
from paceline.lab.workload import WordCounter


class NoSystemCounter(WordCounter):
    """A template without system messages, and a begin-of-text token in front of every text."""

    async def count(self, texts: list[str]) -> list[int]:
        return [1 + n for n in await super().count(texts)]

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        if any(m["role"] == "system" for m in messages):
            raise LabError("no system messages in this template")
        return await super().count_chat(messages) + 5


class GluedCounter(WordCounter):
    """A full stop and the capital after it become one token more: counts depend on the neighbour."""

    async def count(self, texts: list[str]) -> list[int]:
        return [_glued(text) for text in texts]

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        return sum(_glued(str(m["content"])) + 4 for m in messages)


class ByteCounter(WordCounter):
    """One token per byte: no word is a single token."""

    async def count(self, texts: list[str]) -> list[int]:
        return [len(text.encode()) for text in texts]

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        return sum(len(str(m["content"]).encode()) + 10 for m in messages)


def _glued(text: str) -> int:
    words = text.split()
    return len(words) + sum(a.endswith(".") and b[:1].isupper() for a, b in pairwise(words))
