"""Token counts of one tokenizer, remembered over the points of an experiment.

Texts are made of the same pieces in each point, and counting them anew by HTTP would cost seconds a point.
"""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.lab.workload import TokenCounter


class Counts:
    """What was counted so far. Belongs to one tokenizer: share it between servers of the same model only."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.chats: dict[bytes, int] = {}


class RememberingCounter:
    """A `TokenCounter` that asks another one for what `known` does not hold."""

    def __init__(self, inner: TokenCounter, known: Counts) -> None:
        self._inner = inner
        self._known = known

    @property
    def exact(self) -> bool:
        return self._inner.exact

    async def count(self, texts: list[str]) -> list[int]:
        known = self._known.texts
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            known.update(zip(missing, await self._inner.count(missing), strict=True))
        return [known[text] for text in texts]

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        key = msgspec.json.encode(messages, order="deterministic")
        if key not in self._known.chats:
            self._known.chats[key] = await self._inner.count_chat(messages)
        return self._known.chats[key]
