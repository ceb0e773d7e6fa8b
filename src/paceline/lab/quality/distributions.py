"""What a server thinks of each token of a text: log probabilities through the completions endpoint.

Two forms are understood. `prompt_logprobs` (paceline, vLLM) names tokens by id; it is used when the prompt was given as
ids. `echo` with `logprobs` (the older form of the API) names them by their text. A server that has neither, as
llama.cpp's `llama-server`, cannot be asked about a given text: `PromptLogprobs.ask` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from paceline.errors import LabError
from paceline.lab.quality.caller import Caller, Reply

Prompt = str | list[int]


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """One position: its token, and the largest log probabilities (natural) the server told, the token's among them."""

    token: str  # id, or text
    logprob: float
    top: dict[str, float] = {}

    @property
    def best(self) -> str:
        return max(self.top, key=self.top.__getitem__) if self.top else ""


class PromptLogprobs:
    """Asks one server about texts. The first call finds out which form it has."""

    def __init__(self, caller: Caller, *, num_top: int = 20) -> None:
        self._caller = caller
        self._num_top = num_top
        self.form: Literal["", "prompt_logprobs", "echo"] = ""

    async def ask(self, prompt: Prompt) -> list[Distribution]:
        """One entry for each token of the prompt but the first. Raises LabError where the server cannot tell."""
        words = ""
        if self.form != "echo" and isinstance(prompt, list):
            found = await self._by_id(prompt)
            if isinstance(found, list):
                self.form = "prompt_logprobs"
                return found
            words = found
        if self.form != "prompt_logprobs":
            found = await self._by_text(prompt)
            if isinstance(found, list):
                self.form = "echo"
                return found
            words = words or found
        raise LabError(
            "the server does not tell the log probabilities of a prompt",
            seen=words or self._caller.url,
            expected="completions with prompt_logprobs, or with echo and logprobs (paceline and vLLM have both; "
            "llama.cpp's llama-server has neither)",
            fix="compare generated answers instead: paceline quality agree",
        )

    async def _by_id(self, ids: list[int]) -> list[Distribution] | str:
        reply = await self._caller.complete(ids, max_tokens=1, prompt_logprobs=self._num_top)
        shown = reply.choice.get("prompt_logprobs")
        if reply.error or not isinstance(shown, list):
            return reply.error or "the answer holds no prompt_logprobs"
        if len(shown) != len(ids):
            return f"{len(shown)} log probabilities for {len(ids)} tokens"
        return [by_id(entry, token) for token, entry in zip(ids, shown, strict=True) if entry is not None]

    async def _by_text(self, prompt: Prompt) -> list[Distribution] | str:
        fields: dict[str, Any] = {"echo": True, "logprobs": max(1, self._num_top)}
        reply = await self._caller.complete(prompt, max_tokens=0, **fields)
        num_made = 0
        if reply.error:
            reply = await self._caller.complete(prompt, max_tokens=1, **fields)
            num_made = 1
        if reply.error:
            return reply.error
        entries = of_choice(reply)
        entries = entries[: len(entries) - num_made]
        expected = len(prompt) - 1 if isinstance(prompt, list) else 1
        if len(entries) < expected or (isinstance(prompt, str) and not _is_echoed(reply, prompt)):
            return "the prompt was not echoed with log probabilities"
        return entries


def by_id(entry: Mapping[str, Any], token: int) -> Distribution:
    """An entry of `prompt_logprobs`. Raises LabError if the token itself is not in it."""
    top = {name: float(value["logprob"]) for name, value in entry.items()}
    own = top.get(str(token))
    if own is None:
        raise LabError("the log probabilities of a prompt are those of other tokens", seen=f"token {token} is missing")
    return Distribution(str(token), own, top)


def of_choice(reply: Reply) -> list[Distribution]:
    """The `logprobs` of a choice, in the form of completions or of chat; empty where it has none."""
    shown = reply.choice.get("logprobs") or {}
    if isinstance(shown.get("content"), list):
        return [_of_chat(entry) for entry in shown["content"]]
    tokens: Sequence[str] = shown.get("tokens") or ()
    values: Sequence[float | None] = shown.get("token_logprobs") or ()
    tops: Sequence[Mapping[str, float] | None] = shown.get("top_logprobs") or [None] * len(tokens)
    return [
        Distribution(token, value, {**{str(k): float(v) for k, v in (top or {}).items()}, token: value})
        for token, value, top in zip(tokens, values, tops, strict=True)
        if value is not None
    ]


def _of_chat(entry: Mapping[str, Any]) -> Distribution:
    top = {_name(each): float(each["logprob"]) for each in entry.get("top_logprobs") or ()}
    own, value = _name(entry), float(entry["logprob"])
    return Distribution(own, value, {**top, own: value})


def _name(entry: Mapping[str, Any]) -> str:
    """By id where there is one (llama.cpp), else by bytes: different tokens may look the same."""
    if "id" in entry:
        return str(entry["id"])
    data = entry.get("bytes")
    return bytes(data).hex() if data else str(entry["token"])


def _is_echoed(reply: Reply, prompt: str) -> bool:
    return reply.text.lstrip().startswith(prompt[:32].lstrip())
