"""What servers send, as far as the lab reads it: the typed shape of an event or of a whole answer.

Only the fields a record needs are decoded; all others are skipped by the decoder without building objects.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None  # text; some servers send an object


class ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    """Of a chunk, or the message of a whole answer."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # other servers' name for it
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Paceline(msgspec.Struct):
    """paceline's extension. The sum of `num_tokens` over the chunks is the answer's length."""

    num_tokens: int | None = None
    timings: dict[str, float | None] | None = None


class Timings(msgspec.Struct):
    """llama.cpp's."""

    predicted_n: int | None = None  # tokens so far
    prompt_ms: float | None = None
    cache_n: int | None = None


class Event(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None  # of an error that is not wrapped in `error`
    code: Any = None
    paceline: Paceline | None = None
    timings: Timings | None = None


decode_event = msgspec.json.Decoder(Event).decode


def error_words(error: Any) -> str:
    """A code and the server's message, on one line of at most 300 characters."""
    if isinstance(error, dict):
        code = error.get("code") or error.get("type")
        message = error.get("message") or error.get("detail") or ""
        text = f"{code}: {message}" if code and message else str(code or message or "error")
    else:
        text = str(error)
    return " ".join(text.split())[:300]
