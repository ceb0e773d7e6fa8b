"""One answer as it comes in: chunks with their kinds and token counts, usage, and how it ended.

No clock: the time of each read is passed in. A chunk costs one record and nothing else that stays, unless texts are
kept. Token counts come from whatever the server says: paceline's count per chunk, token ids, usage that grows from
chunk to chunk, or llama.cpp's timings; -1 where it says nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.contracts.artefact import TOKEN_KINDS, Chunk, ChunkKind, TokenSource
from paceline.contracts.slo import Outcome
from paceline.lab.load.events import Choice, Delta, Event, Timings, ToolCall, Usage, decode_event, error_words

_ROLE, _REASONING, _CONTENT, _TOOL = ChunkKind.ROLE, ChunkKind.REASONING, ChunkKind.CONTENT, ChunkKind.TOOL
_GAVE_UP = frozenset({"abort", "aborted", "cancelled", "error", "timeout"})  # servers' words for an answer they dropped


class Answer:
    """Feed it events with `on_event`, or the body of an answer that is not streamed with `on_whole`."""

    __slots__ = (
        "_running",
        "_total",
        "cached_tokens",
        "chunks",
        "completion_tokens",
        "done",
        "error",
        "finish_reason",
        "keep",
        "num_lost",
        "num_seen",
        "prompt_tokens",
        "reasoning_tokens",
        "server",
        "text_parts",
        "tool_calls",
    )

    def __init__(self, *, keep: bool = False) -> None:
        """`keep`: the text and the tool calls too."""
        self.chunks: list[Chunk] = []
        self.finish_reason: str | None = None
        self.error: str | None = None  # the server's own, within the answer
        self.done = False  # [DONE] came, or a whole answer
        self.num_lost = 0  # events that could not be read
        self.num_seen = 0  # tokens so far; a chunk without a count is taken for one
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = self.reasoning_tokens = -1
        self.server: dict[str, float] = {}
        self.text_parts: list[str] = []
        self.tool_calls: list[dict[str, Any]] = []
        self.keep = keep
        self._total = 0  # tokens told of by a running total
        self._running = False  # such totals come with what brings tokens, not with the end alone

    # --- what comes

    def on_event(self, data: bytes, t_ns: int) -> None:
        if data == b"[DONE]":
            self.done = True
            self.chunks.append(Chunk(t_ns, ChunkKind.DONE))
            return
        event = self._opened(data, t_ns)
        if event is None:
            return
        choices = event.choices
        if not choices:
            kind = ChunkKind.USAGE if event.usage is not None else _ROLE
            self.chunks.append(Chunk(t_ns, kind))
        else:
            kind, num_bytes = self._payload(choices, streamed=True)
            count = self._count(event, choices, kind)
            self.chunks.append(Chunk(t_ns, kind, count, num_bytes))
            if count > 0:
                self.num_seen += count
            elif count < 0 and kind is not _ROLE:
                self.num_seen += 1
        if event.paceline is not None and event.paceline.timings is not None:
            self._on_timings(event.paceline.timings)
        if event.timings is not None:
            self._on_llama(event.timings)

    def on_whole(self, body: bytes, t_ns: int) -> None:
        """The body of an answer that is not streamed: one chunk, with all its tokens."""
        event = self._opened(body, t_ns)
        if event is None:
            return
        kind, num_bytes = self._payload(event.choices or [], streamed=False)
        own = event.paceline
        count = own.num_tokens if own is not None and own.num_tokens is not None else self.completion_tokens
        self.chunks.append(Chunk(t_ns, kind, count, num_bytes))
        self.num_seen = max(count, int(kind is not _ROLE))
        self.done = True
        if own is not None and own.timings is not None:
            self._on_timings(own.timings)
        if event.timings is not None:
            self._on_llama(event.timings)

    def _opened(self, data: bytes, t_ns: int) -> Event | None:
        """What came, its usage taken; None where it cannot be read or is an error, which is noted."""
        try:
            event = decode_event(data)
        except msgspec.DecodeError:
            self.num_lost += 1
            return None
        if event.error is not None or event.object == "error":
            self._on_error(event, t_ns)
            return None
        if event.usage is not None:
            self._on_usage(event.usage)
        return event

    # --- what it amounts to

    def judge(self, num_asked: int, *, exact: bool) -> tuple[Outcome, str]:
        """Outcome and reason of an answer whose transport ended well. `exact`: the server was made to give `num_asked`
        tokens."""
        if self.error is not None:
            return Outcome.STREAM_ERROR, self.error
        if not any(chunk.kind in TOKEN_KINDS for chunk in self.chunks):
            if self.num_lost:
                return Outcome.STREAM_ERROR, f"unreadable: {self.num_lost} events"
            return Outcome.TRUNCATED, f"no_token: finish_reason {self.finish_reason}"
        if self.finish_reason is None:
            return Outcome.TRUNCATED, "no finish_reason"
        if self.finish_reason in _GAVE_UP:
            return Outcome.STREAM_ERROR, f"finish_reason: {self.finish_reason}"
        known = self.num_tokens
        if self.finish_reason == "length" and exact and 0 <= known < num_asked:
            return Outcome.TRUNCATED, f"length: {known} of {num_asked} tokens"
        return Outcome.OK, self.finish_reason

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer: usage first, then the chunks' own counts; -1 if neither is there."""
        if self.completion_tokens >= 0:
            return self.completion_tokens
        counts = [chunk.num_tokens for chunk in self.chunks if chunk.num_tokens >= 0]
        return sum(counts) if self._counted() else -1

    @property
    def token_source(self) -> TokenSource:
        if not any(chunk.kind in TOKEN_KINDS for chunk in self.chunks):
            return TokenSource.NONE
        if self._counted():
            return TokenSource.CHUNK_USAGE
        return TokenSource.FINAL_USAGE if self.completion_tokens >= 0 else TokenSource.CHUNKS

    @property
    def text(self) -> str:
        return "".join(self.text_parts)

    def _counted(self) -> bool:
        """Every chunk with a payload has a count."""
        return all(chunk.num_tokens >= 0 for chunk in self.chunks if chunk.kind in TOKEN_KINDS)

    # --- parts

    def _on_error(self, event: Event, t_ns: int) -> None:
        error = event.error if event.error is not None else {"code": event.code, "message": event.message}
        self.chunks.append(Chunk(t_ns, ChunkKind.ERROR))
        self.error = self.error or error_words(error)

    def _on_usage(self, usage: Usage) -> None:
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        details = usage.completion_tokens_details
        if details is not None and details.reasoning_tokens is not None:
            self.reasoning_tokens = details.reasoning_tokens

    def _on_timings(self, timings: dict[str, float | None]) -> None:
        self.server.update({name: value for name, value in timings.items() if value is not None})

    def _on_llama(self, timings: Timings) -> None:
        """llama.cpp's; older ones say only here what came from their cache."""
        if timings.prompt_ms is not None:
            self.server["prefill_ms"] = timings.prompt_ms
        if timings.cache_n is not None and self.cached_tokens < 0:
            self.cached_tokens = timings.cache_n

    def _count(self, event: Event, choices: list[Choice], kind: ChunkKind) -> int:
        """Tokens this chunk brought; -1 if the server does not say."""
        if event.paceline is not None and event.paceline.num_tokens is not None:
            return event.paceline.num_tokens
        ids = [choice.token_ids for choice in choices if choice.token_ids is not None]
        if ids:
            return sum(len(some) for some in ids)
        total: int | None = None
        if event.usage is not None:
            total = event.usage.completion_tokens
        elif event.timings is not None:
            total = event.timings.predicted_n
        self._running = self._running or (total is not None and kind is not _ROLE)
        if total is None or not self._running:
            return -1
        count, self._total = total - self._total, max(total, self._total)
        return max(0, count)

    def _payload(self, choices: list[Choice], *, streamed: bool) -> tuple[ChunkKind, int]:
        """Kind of what the choices bring, and its bytes. Content names a chunk that brings several kinds."""
        kind, num_bytes = _ROLE, 0
        for choice in choices:
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            if choice.text:
                kind, num_bytes = _CONTENT, num_bytes + self._text(choice.text)
            delta = choice.delta if streamed else choice.message
            if delta is None:
                continue
            if thought := delta.reasoning_content or delta.reasoning:
                kind, num_bytes = (_REASONING if kind is _ROLE else kind), num_bytes + _size(thought)
            if delta.tool_calls and (size := self._calls(delta)):
                kind, num_bytes = (kind if kind is _CONTENT else _TOOL), num_bytes + size
            if delta.content:
                kind, num_bytes = _CONTENT, num_bytes + self._text(delta.content)
        return kind, num_bytes

    def _text(self, text: str) -> int:
        if self.keep:
            self.text_parts.append(text)
        return _size(text)

    def _calls(self, delta: Delta) -> int:
        num_bytes = 0
        for call in delta.tool_calls or ():
            function = call.function
            if function is None:
                continue
            arguments = function.arguments
            if arguments is not None and not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()
            num_bytes += _size(function.name or "") + _size(arguments or "")
            if self.keep:
                self._keep_call(call, function.name, arguments)
        return num_bytes

    def _keep_call(self, call: ToolCall, name: str | None, arguments: str | None) -> None:
        """Parts of one call are joined by its index; without an index each part is a call of its own."""
        index = len(self.tool_calls) if call.index is None else call.index
        made = next((known for known in self.tool_calls if known["index"] == index), None)
        if made is None:
            made = {"index": index, "id": None, "name": "", "arguments": ""}
            self.tool_calls.append(made)
        made["id"] = made["id"] or call.id
        made["name"] += name or ""
        made["arguments"] += arguments or ""


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
