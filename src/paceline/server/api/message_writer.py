"""How /v1/messages words an answer: content blocks, and the events that build them.

message_start; for each block content_block_start, content_block_delta ..., content_block_stop; message_delta with
the reason and the counts; message_stop. An error ends the stream instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from paceline.server.api.blocks import Block, BlockWriter
from paceline.server.api.sse import encode, encode_text, named_event
from paceline.server.api.writer import finish_reason, stop_reason, timings_of, usage_of
from paceline.server.errors import messages_error

if TYPE_CHECKING:
    from paceline.server.api.generation import Generation
    from paceline.server.api.protocol.anthropic import MessagesRequest

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {  # type of a delta, and the key of its text
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessageWriter(BlockWriter):
    def __init__(self, generation: Generation, body: MessagesRequest, model: str) -> None:
        super().__init__(generation, model)
        self._timings = bool(body.timings)
        self._heads: dict[int, bytes] = {}  # by block: a delta event up to its text

    # --- events

    def beginning(self) -> bytes:
        usage = {
            "input_tokens": self.generation.num_prompt_tokens,  # how many were cached is told at the end
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        return _event("message_start", message=self._message([], usage))

    def opened(self, block: Block) -> bytes:
        return _event("content_block_start", index=block.index, content_block=_content(block, ""))

    def delta(self, block: Block, text: str) -> bytes:
        """Put together from bytes made once."""
        head = self._heads.get(block.index)
        if head is None:
            kind, key = _DELTAS[block.kind]
            whole = _event("content_block_delta", index=block.index, delta={"type": kind, key: ""})
            head = self._heads[block.index] = whole[: -len(b'""}}\n\n')]
        return b"".join((head, encode_text(text), b"}}\n\n"))

    def closed(self, block: Block) -> bytes:
        return _event("content_block_stop", index=block.index)

    def last_events(self) -> bytes:
        delta = {**self._end(), **self._about()}
        return _event("message_delta", delta=delta, usage=self._usage()) + _event("message_stop")

    def failure(self, error: Exception) -> bytes:
        return named_event("error", messages_error(error, self.generation.ask.request_id.removeprefix("msg_")))

    # --- whole

    def whole(self) -> bytes:
        content = [_content(block, block.text) for block in self.message_blocks()]
        return encode({**self._message(content, self._usage()), **self._end(), **self._about()})

    # --- values

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.generation.ask.request_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _end(self) -> dict[str, str | None]:
        assert self.last is not None
        reason = finish_reason(self.last)
        stopped_by = stop_reason(self.last, self.generation.ask.sampling)
        if reason == "stop" and isinstance(stopped_by, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
        return {"stop_reason": _REASONS[str(reason)], "stop_sequence": None}

    def _usage(self) -> dict[str, int]:
        """Tokens read from the cache are not among `input_tokens`."""
        usage = usage_of(self.generation)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }

    def _about(self) -> dict[str, Any]:
        return {"paceline": {"timings": timings_of(self.generation)}} if self._timings else {}


def _content(block: Block, text: str) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text", "text": text}
        case "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        case "call":
            given = msgspec.Raw(text.encode()) if text and block.whole else {}  # a beginning of arguments is no value
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": given}


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})
