"""Chunks as JSON: how each flavour words what it sends. Ids hold a mark that is replaced as the bytes are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.contracts.artefact import ChunkKind
from paceline.lab.mock.asks import Ask
from paceline.lab.mock.script import Flavour, Script

MARK = b"mock-########"  # the number of the request goes here; as long as what replaces it
CREATED = 1_700_000_000

encode = msgspec.json.Encoder().encode


def numbered(data: bytes, number: int) -> bytes:
    """`data` with the id of request `number`."""
    return data.replace(MARK, b"mock-%08d" % (number % 100_000_000))


def sse(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
MALFORMED = b'data: {"id": "mock", "choices": [{"ind\n\n'


@dataclass(frozen=True, slots=True)
class Voice:
    """What the words of a chunk depend on; equal voices word equal chunks in the same way."""

    flavour: Flavour
    chat: bool
    model: str
    include_usage: bool
    continuous_usage: bool
    prompt_tokens: int  # 0 unless `continuous_usage`
    reasoning_field: str
    timings_each: bool = False

    @classmethod
    def of(cls, script: Script, ask: Ask) -> Voice:
        prompt_tokens = len(ask.words) if ask.continuous_usage else 0
        field = script.reasoning_field
        asked = (ask.include_usage, ask.continuous_usage, prompt_tokens, field, ask.timings_each)
        return cls(script.flavour, ask.chat, ask.model, *asked)

    @property
    def finish_apart(self) -> bool:
        """The reason of the end comes in a chunk without text, not with the last text."""
        return self.flavour in (Flavour.OPENAI, Flavour.LLAMA_CPP)

    def chunk(self, choices: list[dict[str, Any]], num_tokens: int | None, num_so_far: int) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        value: dict[str, Any] = {"id": self._id(), "object": kind, "created": CREATED, "model": self.model}
        value["choices"] = choices
        if self.continuous_usage:
            value["usage"] = usage(self.prompt_tokens, num_so_far)
        elif self.include_usage and self.flavour in (Flavour.PACELINE, Flavour.OPENAI):
            value["usage"] = None
        if self.timings_each and num_tokens:
            value["timings"] = {"predicted_n": num_so_far}
        if self.flavour is Flavour.PACELINE and num_tokens is not None:
            value["paceline"] = {"num_tokens": num_tokens}
        return value

    def role(self) -> dict[str, Any]:
        delta = {"role": "assistant", "content": None if self.flavour is Flavour.LLAMA_CPP else ""}
        return self.chunk([{"index": 0, "delta": delta, "finish_reason": None}], None, 0)

    def piece(
        self,
        kind: ChunkKind,
        text: str,
        *,
        num_tokens: int,
        num_so_far: int,
        tool: str | None = None,
        tool_index: int = 0,
        finish: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A chunk with a piece of the answer."""
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["delta"] = self._delta(kind, text, tool, tool_index)
        else:
            choice["text"] = text
        choice |= {"finish_reason": finish, **(extra or {})}
        return self.chunk([choice], num_tokens, num_so_far)

    def finish(self, reason: str, num_so_far: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, **({"delta": {}} if self.chat else {"text": ""})}
        return self.chunk([choice | {"finish_reason": reason}], 0, num_so_far)

    def _delta(self, kind: ChunkKind, text: str, tool: str | None, tool_index: int) -> dict[str, Any]:
        if kind is ChunkKind.REASONING:
            return {self.reasoning_field: text}
        if kind is ChunkKind.TOOL:
            return {"tool_calls": [tool_delta(text, tool, tool_index)]}
        if kind is ChunkKind.ROLE:
            return {"role": "assistant", "content": text}
        return {"content": text}

    def _id(self) -> str:
        return ("chatcmpl-" if self.chat else "cmpl-") + MARK.decode()


def tool_delta(arguments: str, tool: str | None, index: int) -> dict[str, Any]:
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if tool is not None:
        call |= {"id": f"call_{index}", "type": "function"}
        call["function"] = {"name": tool, "arguments": arguments}
    return call


def usage(
    prompt_tokens: int, completion_tokens: int, cached: int | None = None, reasoning: int | None = None
) -> dict[str, Any]:
    value: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if cached is not None:
        value["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        value["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return value


def error_value(message: str, code: str | None, status: int, param: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
