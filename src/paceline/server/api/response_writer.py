"""How /v1/responses words an answer: items, and the events that build them, numbered from 0.

response.created, response.in_progress
for each item     response.output_item.added ... response.output_item.done
  text            response.content_part.added, response.output_text.delta, ..., .done, response.content_part.done
  reasoning       response.content_part.added, response.reasoning_text.delta, ..., .done, response.content_part.done
  a call          response.function_call_arguments.delta, ..., .done
response.completed, response.incomplete (a limit ended it) or response.failed

Logprobs: deltas bring the entries of the tokens that came since the one before, and the events that end a text have
those of its deltas. The last response, like an answer that is not streamed, has the entries of all tokens, markers and
calls too, at its last text.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paceline.server.api.blocks import Block, BlockWriter
from paceline.server.api.protocol.logprobs import ChatLogprobs
from paceline.server.api.sse import encode, encode_text, named_event
from paceline.server.api.writer import stop_reason, timings_of, usage_of
from paceline.server.errors import error_object

if TYPE_CHECKING:
    from paceline.server.api.choice import Choice, News
    from paceline.server.api.generation import Generation
    from paceline.server.api.protocol.responses import ResponsesRequest

_ID_PREFIX = {"text": "msg", "reasoning": "rs", "call": "fc"}
_DELTAS = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "call": "response.function_call_arguments.delta",
}


class ResponseWriter(BlockWriter):
    def __init__(self, generation: Generation, body: ResponsesRequest, model: str) -> None:
        super().__init__(generation, model)
        self._body = body
        self._created = int(time.time())
        self._number = 0  # of the next event
        self._logprobs = ChatLogprobs(generation.tokenizer)
        self._want_logprobs = body.want_logprobs
        self._new_entries: list[dict[str, Any]] = []  # of tokens that no delta has told of
        self._entries: list[dict[str, Any]] = []  # of the open text
        self._heads: dict[int, bytes] = {}  # by block: a delta event up to its number
        self._items: list[dict[str, Any]] = []  # those that have ended

    # --- events

    def events(self, choice: Choice, news: News) -> bytes:
        if self._want_logprobs:
            self._new_entries += self._logprobs.entries(news.logprobs)
        data = super().events(choice, news)
        return data if news.finish is None or self.blocks else data + self._empty_text()

    def beginning(self) -> bytes:
        response = self._response("in_progress", [])
        return b"".join(self._event(f"response.{name}", {"response": response}) for name in ("created", "in_progress"))

    def opened(self, block: Block) -> bytes:
        item = {**self._item(block, "", []), "status": "in_progress"}
        if block.kind != "call":
            item["content"] = []
        added = self._event("response.output_item.added", {"output_index": block.index, "item": item})
        if block.kind == "call":
            return added
        return added + self._event("response.content_part.added", {**self._place(block), "part": _part(block, "", [])})

    def delta(self, block: Block, text: str) -> bytes:
        """An event that holds text alone is put together from bytes made once."""
        name = _DELTAS[block.kind]
        if block.kind == "text" and self._new_entries:
            entries, self._new_entries = self._new_entries, []
            self._entries += entries
            return self._event(name, {**self._place(block), "delta": text, "logprobs": entries})
        head = self._heads.get(block.index)
        if head is None:
            place = {"type": name, **self._place(block)} | ({"logprobs": []} if block.kind == "text" else {})
            head = b"event: " + name.encode() + b"\ndata: " + encode(place)[:-1] + b',"sequence_number":'
            self._heads[block.index] = head
        return b"".join((head, b"%d" % self._next(), b',"delta":', encode_text(text), b"}\n\n"))

    def closed(self, block: Block) -> bytes:
        text, place = block.text, self._place(block)
        entries: list[dict[str, Any]] = []
        if block.kind == "text":
            entries = self._entries + self._new_entries
            self._entries, self._new_entries = [], []
        item = self._item(block, text, entries)
        self._items.append(item)
        last = ("response.output_item.done", {"output_index": block.index, "item": item})
        if block.kind == "call":
            value = {**place, "name": block.name, "arguments": text}
            return self._events(("response.function_call_arguments.done", value), last)
        value = {**place, "text": text} | ({"logprobs": entries} if block.kind == "text" else {})
        part = {**place, "part": _part(block, text, entries)}
        done = _DELTAS[block.kind].replace(".delta", ".done")
        return self._events((done, value), ("response.content_part.done", part), last)

    def last_events(self) -> bytes:
        status = self._status()
        return self._event(f"response.{status}", {"response": self._response(status, self._output(), ended=True)})

    def failure(self, error: Exception) -> bytes:
        response = self._response("failed", self._items)
        response["error"] = {"code": "server_error", "message": error_object(error)["error"]["message"]}
        return self._event("response.failed", {"response": response})

    def _empty_text(self) -> bytes:
        """An answer without a word is an empty message."""
        block = Block(0, "text", whole=not self.cut)
        self.blocks.append(block)
        return self.opened(block) + self.closed(block)

    def _events(self, *events: tuple[str, dict[str, Any]]) -> bytes:
        """In this order, which is that of their numbers."""
        return b"".join([self._event(name, value) for name, value in events])

    def _event(self, name: str, value: dict[str, Any]) -> bytes:
        return named_event(name, {"type": name, "sequence_number": self._next(), **value})

    def _next(self) -> int:
        self._number += 1
        return self._number - 1

    # --- whole

    def whole(self) -> bytes:
        return encode(self._response(self._status(), self._output(), ended=True))

    def _output(self) -> list[dict[str, Any]]:
        """The items of an answer that has ended."""
        blocks = self.message_blocks() or [Block(0, "text", whole=not self.cut)]
        entries = self._logprobs.entries(self.choice.text.logprobs) if self._want_logprobs else []
        last_text = next((block for block in reversed(blocks) if block.kind == "text"), None)
        return [self._item(block, block.text, entries if block is last_text else []) for block in blocks]

    # --- values

    def _status(self) -> str:
        return "incomplete" if self.cut else "completed"

    def _id(self, block: Block) -> str:
        return f"{_ID_PREFIX[block.kind]}_{self.generation.ask.request_id.removeprefix('resp_')}_{block.index}"

    def _place(self, block: Block) -> dict[str, Any]:
        place = {"item_id": self._id(block), "output_index": block.index}
        return place if block.kind == "call" else {**place, "content_index": 0}

    def _item(self, block: Block, text: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        status = "completed" if block.whole else "incomplete"
        item: dict[str, Any] = {"id": self._id(block), "status": status}
        match block.kind:
            case "text":
                return {**item, "type": "message", "role": "assistant", "content": [_part(block, text, entries)]}
            case "reasoning":
                return {**item, "type": "reasoning", "summary": [], "content": [_part(block, text, entries)]}
            case "call":
                call = {"call_id": block.call_id, "name": block.name, "arguments": text}
                return {**item, "type": "function_call", **call}

    def _response(self, status: str, items: list[dict[str, Any]], *, ended: bool = False) -> dict[str, Any]:
        """The response object. `ended`: with what is known at the end alone."""
        body, ask = self._body, self.generation.ask
        text = {"format": {"type": "text"}} if body.text is None or body.text.format is None else body.text.plain()
        reasoning = body.reasoning
        response: dict[str, Any] = {
            "id": ask.request_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if ended and status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": items,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "background": False,
            "store": False,
            "previous_response_id": None,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "text": text,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "truncation": "disabled",
            "metadata": body.metadata or {},
            "user": body.user,
            "usage": None,
        }
        if ended:
            response["usage"] = _usage(usage_of(self.generation))
            response["paceline"] = self._about()
        return response

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = {"num_tokens": self.choice.num_tokens}
        if self.last is not None:
            about["stop_reason"] = stop_reason(self.last, self.generation.ask.sampling)
        if self._body.timings:
            about["timings"] = timings_of(self.generation)
        return about


def _part(block: Block, text: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": entries}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """A chat's, in the words of this API."""
    reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage["total_tokens"],
    }
