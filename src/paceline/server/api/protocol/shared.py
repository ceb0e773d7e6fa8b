"""Fields that a chat has under the same name in every form of the API; they are handed on as they are."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr, model_validator

from paceline.server.api.protocol.body import Body, check
from paceline.server.api.protocol.chat import ChatRequest
from paceline.server.api.protocol.fields import Name, Number, Seconds, Seed, TokenIds
from paceline.server.api.protocol.renamed import Names, in_words_of
from paceline.server.api.protocol.sampling import SloFields

_HANDED_ON = (
    "model",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "ignore_eos",
    "chat_template_kwargs",
    "timings",
    "stream",
    "priority",
    "service_class",
    "slo",
    "timeout",
    "cache_salt",
    "request_id",
)


class SharedFields(Body):
    """How to draw, and how to run the call: meanings and bounds are the chat's."""

    model: str | None = None
    # how to draw
    min_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
    min_p: Number | None = None
    typical_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    seed: Seed = None
    stop_token_ids: TokenIds = None
    ignore_eos: bool | None = None
    # what to show, and how to run
    chat_template_kwargs: dict[str, Any] | None = None
    timings: bool | None = None
    stream: bool | None = None
    priority: int | None = None
    service_class: Name = None  # also written `class`
    slo: SloFields | None = None
    timeout: Seconds = None
    cache_salt: Name = None
    request_id: Name = None

    NAMES: ClassVar[Names] = ()  # a chat's parameters as they are called here
    ALIASES: ClassVar[dict[str, str]] = {"class": "service_class"}
    _chat: ChatRequest = PrivateAttr()

    @property
    def chat(self) -> ChatRequest:
        """The chat that is asked for."""
        return self._chat

    @abstractmethod
    def chat_fields(self) -> dict[str, Any]:
        """Fields of a chat made from those of this form alone; None for what is not given. Raises RequestError."""

    @model_validator(mode="after")
    def _make_chat(self) -> Self:
        """As part of the checks, which run in another thread for large bodies. Raises RequestError in our words."""
        given = {name: getattr(self, name) for name in _HANDED_ON} | self.chat_fields()
        with in_words_of(self.NAMES):
            self._chat = check({name: value for name, value in given.items() if value is not None}, ChatRequest)
        return self
