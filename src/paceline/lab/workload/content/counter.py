"""Who counts tokens. The load generator asks the server; tests count words, as the mock server does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.contracts.workload import RenderedPrompt


class TokenCounter(Protocol):
    """Counts tokens as the server under test would. `exact` is False for an estimate."""

    @property
    def exact(self) -> bool: ...

    async def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text, special tokens at its ends included if the server adds them to a prompt."""
        ...

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        """Tokens of the prompt that the server makes of these messages. LabError if it refuses them."""
        ...


class WordCounter:
    """One token per word between white space, and `chat_overhead` per message: exact, and without a server."""

    exact = True

    def __init__(self, chat_overhead: int = 0) -> None:
        self._overhead = chat_overhead

    async def count(self, texts: list[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        return sum(len(str(m.get("content") or "").split()) + self._overhead for m in messages)


class EstimateCounter:
    """About four characters to a token: for servers that count nothing. What is rendered says that it is not exact."""

    exact = False

    async def count(self, texts: list[str]) -> list[int]:
        return [max(1, round(len(text) / 4)) for text in texts]

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        return sum(max(1, round(len(str(m.get("content") or "")) / 4)) + 5 for m in messages)


def texts_of(prompt: RenderedPrompt) -> Sequence[str]:
    """The texts of a prompt, for whoever counts words in it."""
    if prompt.messages is not None:
        return [str(m.get("content") or "") for m in prompt.messages]
    return [prompt.text] if prompt.text is not None else []
