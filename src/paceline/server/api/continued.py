"""Rendering a conversation whose last message is to be continued, not answered.

The last message gets a mark at its end, a character that stands nowhere else; the rendered text is cut where the mark
is. So the prompt ends exactly where the message does, whatever a template puts behind messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.errors import RequestError
from paceline.text import ChatTemplate
from paceline.text.chat_template import Message

_MARKS = range(0xF8FF, 0xE000, -1)  # private use, from the end that hidden special tokens reach last


class ContinuedTemplate(ChatTemplate):
    """A template that ends with the last message's content."""

    def __init__(self, inner: ChatTemplate) -> None:
        super().__init__(inner.sources, special_tokens=inner.special_tokens)
        self._inner = inner

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """As `ChatTemplate.render`. Raises RequestError when the last message has no text, or the template does not
        show it."""
        last = messages[-1]
        content = _text(last.get("content"))
        if not content:
            raise RequestError(
                "the final message has no text to continue",
                param=f"messages[{len(messages) - 1}].content",
                fix="write how it begins, or end with another message",
            )
        taken = set(msgspec.json.encode([list(messages), options]).decode()).union(*self.sources.values())
        mark = next(chr(code) for code in _MARKS if chr(code) not in taken)
        text = self._inner.render([*messages[:-1], {**last, "content": content + mark}], **options)
        at = text.rfind(mark)
        if at < 0:
            raise RequestError(
                "the chat template does not show the final message, so it cannot be continued",
                param="continue_final_message",
                fix="leave it out",
            )
        return text[:at]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""
