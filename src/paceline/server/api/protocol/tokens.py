"""Bodies of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

from paceline.errors import RequestError
from paceline.server.api.protocol.body import Body
from paceline.server.api.protocol.fields import TokenList
from paceline.server.api.protocol.messages import Messages
from paceline.server.api.protocol.tools import Tools


class TokenizeRequest(Body):
    """A text (`prompt`) or a conversation (`messages`), not both."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools = None  # of a conversation

    def check(self) -> None:
        """Raise RequestError unless there is exactly one thing to tokenize, with tools only where they count."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError(
                "give a prompt or messages, one of them",
                param="prompt",
                seen="neither" if self.prompt is None else "both",
            )
        if self.tools and self.messages is None:
            raise RequestError(
                "tools are shown to the model in a conversation only",
                param="tools",
                fix="send messages, or leave tools out",
            )


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: TokenList
