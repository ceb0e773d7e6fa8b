"""Counts tokens as the server under test does: by asking it, or where it cannot be asked, by an estimate.

The estimate is a line fitted to what usage says of two prompts of known size: tokens of the template, and tokens per
character. It is not exact and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from paceline.errors import LabError
from paceline.lab.load.control import Control, Reply
from paceline.lab.load.target import CHAT_PATH, Target

AT_ONCE = 4
SAMPLE = (
    "The old harbour wakes before the town does. Boats leave while it is still dark, and by seven the market smells of "
    "salt, bread and wet rope. Nobody hurries, yet everything is sold by ten o'clock. "
)


class HttpTokenCounter:
    """One target's tokens. With `async with` its calls share connections; without, each call opens its own, and there
    is nothing to close."""

    def __init__(self, target: Target, *, timeout_s: float = 60.0) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._held: Control | None = None
        self._line: tuple[float, float] | None = None  # (tokens of a message beside its text, tokens per character)

    @property
    def exact(self) -> bool:
        return bool(self._target.info.tokenize)

    async def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text, those included that the server puts around a prompt."""
        async with self._control() as control:
            if not self.exact:
                _, per_char = await self._fitted(control)
                return [max(1, round(len(text) * per_char)) for text in texts]
            slots = asyncio.Semaphore(AT_ONCE)

            async def one(text: str) -> int:
                async with slots:
                    return await self._count(control, text)

            return list(await asyncio.gather(*(one(text) for text in texts)))

    async def count_chat(self, messages: list[dict[str, Any]]) -> int:
        """Tokens of the prompt that the server makes of a conversation. Raises LabError where it refuses it."""
        model, form = self._target.info.model, self._target.info.tokenize
        async with self._control() as control:
            if form == "prompt":
                return _counted(await control.post("/tokenize", {"model": model, "messages": messages}))
            if form == "content":
                reply = await control.post("/apply-template", {"messages": messages})
                prompt = reply.object.get("prompt")
                if not isinstance(prompt, str):
                    raise LabError("the server cannot apply its chat template", seen=reply.words)
                return await self._count(control, prompt)
            fixed, per_char = await self._fitted(control)
        chars = sum(len(str(message.get("content") or "")) for message in messages)
        return max(1, round(fixed * len(messages) + chars * per_char))

    async def __aenter__(self) -> HttpTokenCounter:
        self._held = await self._new_control().__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.__aexit__(None, None, None)

    @asynccontextmanager
    async def _control(self) -> AsyncIterator[Control]:
        if self._held is not None:
            yield self._held
            return
        async with self._new_control() as control:
            yield control

    def _new_control(self) -> Control:
        target = self._target
        return Control(
            target.address,
            api_key=target.api_key,
            headers=target.headers,
            ca_file=target.ca_file,
            verify_tls=target.verify_tls,
            timeout_s=self._timeout_s,
        )

    async def _count(self, control: Control, text: str) -> int:
        if self._target.info.tokenize == "content":
            body: dict[str, Any] = {"content": text, "add_special": True, "parse_special": True}
        else:
            body = {"model": self._target.info.model, "prompt": text}
        return _counted(await control.post("/tokenize", body))

    async def _fitted(self, control: Control) -> tuple[float, float]:
        if self._line is None:
            short, long = SAMPLE, SAMPLE * 4
            few, many = await self._prompt_tokens(control, short), await self._prompt_tokens(control, long)
            per_char = (many - few) / (len(long) - len(short))
            self._line = max(0.0, few - per_char * len(short)), per_char
        return self._line

    async def _prompt_tokens(self, control: Control, text: str) -> int:
        target = self._target
        body = {
            "model": target.info.model,
            "messages": [{"role": "user", "content": text}],
            target.max_tokens_field: 1,
            "temperature": 0.0,
        }
        reply = await control.post(CHAT_PATH, body)
        usage = reply.object.get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if not isinstance(count, int) or count < 1:
            raise LabError(
                "the server says nothing about the length of prompts",
                seen=reply.words,
                expected="/tokenize, or usage.prompt_tokens",
                fix="use a plan whose prompts need no exact length",
            )
        return count


def _counted(reply: Reply) -> int:
    value = reply.object
    count = value.get("count")
    if count is None and isinstance(value.get("tokens"), list):
        count = len(value["tokens"])
    if not isinstance(count, int):
        raise LabError("the server does not count these tokens", seen=reply.words)
    return count
