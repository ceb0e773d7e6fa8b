"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.contracts.request import MAX_LOGPROBS, SamplingParams, is_whole, shown
from paceline.errors import RequestError
from paceline.server.api.protocol.messages import Messages
from paceline.server.api.protocol.sampling import GenerationRequest
from paceline.server.api.protocol.tools import Offer, ToolChoice, Tools, offer_of

_OURS = ("messages", "tools", "add_generation_prompt", "continue_final_message", "max_chars", "self")


class ChatRequest(GenerationRequest):
    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None

    REFUSED: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = GenerationRequest.REFUSED | {
        "functions": (([],), "it is the older form of tools: send those"),
        "function_call": (("none",), "it is the older form of tool_choice: send that"),
        "modalities": ((["text"],), "answers are text"),
        "audio": ((), "answers are text"),
        "prediction": ((), "there are no predicted outputs"),
        "reasoning_effort": (("none",), "templates differ: chat_template_kwargs has the variables of this model's"),
        "verbosity": ((), "the model has no such setting"),
        "web_search_options": ((), "the server does not search"),
        "moderation": ((), "the server does not moderate"),
        "prompt_cache_options": (({},), "prefixes are cached by themselves; see cache_salt"),
        "chat_template": ((), "templates of clients are not run; the server has --chat-template"),
        "documents": (([],), "pass them as chat_template_kwargs if the model's template knows them"),
        "mm_processor_kwargs": (({},), "this model takes text only"),
        "media_io_kwargs": (({},), "this model takes text only"),
        "best_of": ((1,), "ask for n choices"),
        "prompt": ((), "a conversation is sent as messages"),
    }

    def sampling(self) -> SamplingParams:
        """Sampling parameters; `max_tokens` is None when the body has none. Raises RequestError."""
        most = self.max_tokens
        if self.max_completion_tokens is not None:
            if most is not None and most != self.max_completion_tokens:
                raise RequestError(
                    "max_tokens and max_completion_tokens differ",
                    param="max_completion_tokens",
                    seen=f"{shown(most)} and {shown(self.max_completion_tokens)}",
                    fix="send one of them: max_completion_tokens",
                )
            most = self.max_completion_tokens
        if self.top_logprobs is not None:
            if not is_whole(self.top_logprobs, 0, MAX_LOGPROBS):
                raise RequestError(
                    "top_logprobs is out of range",
                    param="top_logprobs",
                    seen=shown(self.top_logprobs),
                    expected=f"0 to {MAX_LOGPROBS}",
                )
            if not self.logprobs and self.top_logprobs > 0:
                raise RequestError(
                    "top_logprobs need logprobs", param="top_logprobs", fix="set logprobs to true, or leave it out"
                )
        self.check_streaming()
        return self.params(logprobs=(self.top_logprobs or 0) if self.logprobs else None, max_tokens=most)

    def offer(self) -> Offer | None:
        """Tools that the answer may call, if any. Raises RequestError."""
        return offer_of(self)

    def template_options(self) -> dict[str, Any]:
        """Keyword arguments for the chat template. Raises RequestError."""
        return template_options(self)


def template_options(body: Any) -> dict[str, Any]:
    """Those of a body with `chat_template_kwargs`, `add_generation_prompt` and `continue_final_message`."""
    options = dict(body.chat_template_kwargs or {})
    for name in _OURS:
        if name in options:
            raise RequestError(
                f"chat_template_kwargs cannot set {name}",
                param="chat_template_kwargs",
                seen=name,
                fix="use the field of that name" if name in type(body).model_fields else "leave it out",
            )
    if body.continue_final_message and body.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
            fix="set one of them",
        )
    prompt = body.add_generation_prompt
    options["add_generation_prompt"] = not body.continue_final_message if prompt is None else prompt
    return options
