"""What a client asks for: bodies of the two endpoints that make text, read and checked as far as the mock needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.lab.mock.script import Flavour, Script
from paceline.lab.mock.words import chat_words, id_words

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EXTENSIONS = {
    "cache_prompt",
    "cache_salt",
    "chat_template_kwargs",
    "class",
    "ignore_eos",
    "min_p",
    "min_tokens",
    "n_predict",
    "priority",
    "repetition_penalty",
    "request_id",
    "return_token_ids",
    "service_class",
    "slo",
    "stop_token_ids",
    "timeout",
    "timings",
    "timings_per_token",
    "top_k",
}  # fields that the plain API does not have


class Refused(Exception):  # noqa: N818  an answer, not a defect
    """The request is answered with an error object."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct):
    """Fields the mock acts on; all others are taken and not looked at."""

    model: str | None = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    cache_salt: str | None = None
    timings: bool | None = None
    timings_per_token: bool | None = None


_decode_body = msgspec.json.Decoder(Body).decode
_decode = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Ask:
    """One request for text."""

    chat: bool
    model: str
    words: list[str]  # the prompt, a token each
    streamed: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    salt: str = ""
    timings: bool = False
    timings_each: bool = False  # llama.cpp's: tokens so far with each chunk
    prompt_sha256: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return CHAT if self.chat else COMPLETIONS

    @property
    def text(self) -> str:
        """The prompt for a rule to search."""
        return " ".join(self.words)


def read_ask(script: Script, path: str, headers: Mapping[str, str], data: bytes) -> Ask:
    """`Refused` where a real server of that flavour would refuse it."""
    try:
        body = _decode_body(data)
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not right: {error}", "invalid_request") from None
    if script.flavour is Flavour.OPENAI:
        _refuse_extensions(data)
    chat = path == CHAT
    model = body.model or script.models[0]
    if model not in script.models:
        if script.flavour is not Flavour.LLAMA_CPP:  # which answers to any name
            raise Refused(404, f"no model {model[:80]!r}; there is {script.models[0]}", "model_not_found", "model")
        model = script.models[0]
    if body.n not in (None, 1):
        raise Refused(400, "the mock makes one choice", "invalid_request", "n")
    own = script.flavour is not Flavour.OPENAI
    options = body.stream_options
    raw = body.messages if chat else body.prompt
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if limit is None and script.flavour is Flavour.LLAMA_CPP:
        limit = body.n_predict
    ask = Ask(
        chat=chat,
        model=model,
        words=_chat_words(script, body) if chat else _prompt_words(body.prompt),
        streamed=bool(body.stream),
        include_usage=bool(body.stream) and options is not None and bool(options.include_usage),
        max_tokens=limit,
        min_tokens=(body.min_tokens or 0) if script.flavour in (Flavour.PACELINE, Flavour.VLLM) else 0,
        ignore_eos=own and bool(body.ignore_eos),
        salt=(body.cache_salt or "") if script.flavour in (Flavour.PACELINE, Flavour.VLLM) else "",
        timings=script.flavour is Flavour.PACELINE and bool(body.timings),
        timings_each=script.flavour is Flavour.LLAMA_CPP and bool(body.timings_per_token),
        prompt_sha256=hashlib.sha256(raw).hexdigest(),
        headers=headers,
    )
    if ask.include_usage and options is not None and script.flavour in (Flavour.PACELINE, Flavour.VLLM):
        ask.continuous_usage = bool(options.continuous_usage_stats)
    _check_length(script, ask)
    return ask


def _check_length(script: Script, ask: Ask) -> None:
    room = script.max_model_len - len(ask.words)
    if ask.max_tokens is not None and ask.max_tokens < 0:
        raise Refused(400, "max_tokens is negative", "invalid_request", "max_tokens")
    if room < max(1, ask.max_tokens or 1):
        words = f"{len(ask.words)} prompt tokens and {ask.max_tokens or 1} more are beyond {script.max_model_len}"
        raise Refused(400, words, "context_length_exceeded", "messages" if ask.chat else "prompt")


def _refuse_extensions(data: bytes) -> None:
    unknown = sorted(EXTENSIONS & _decode(data).keys())
    if unknown:
        raise Refused(400, f"Unrecognized request argument supplied: {unknown[0]}", "unknown_parameter", unknown[0])


def _chat_words(script: Script, body: Body) -> list[str]:
    if not body.messages:
        raise Refused(400, "messages is missing", "invalid_request", "messages")
    messages = _decode(body.messages)
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Refused(400, "messages is a list of objects, one at least", "invalid_request", "messages")
    tools = bytes(body.tools).decode() if body.tools not in (b"", b"null") else ""
    return chat_words(messages, tools, script.template_tokens)


def _prompt_words(raw: msgspec.Raw) -> list[str]:
    prompt: Any = _decode(raw) if raw else None
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        words = prompt.split()
    elif isinstance(prompt, list) and prompt and all(isinstance(i, int) and i >= 0 for i in prompt):
        words = id_words(prompt)
    else:
        raise Refused(400, "prompt is a text or a list of token ids, and one of them", "invalid_request", "prompt")
    if not words:
        raise Refused(400, "the prompt has no token", "invalid_request", "prompt")
    return words
