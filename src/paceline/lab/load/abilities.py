"""What a server can, found by small calls: how far each part of a request is understood."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.errors import LabError
from paceline.lab.load.answer import Answer
from paceline.lab.load.control import Control, Reply
from paceline.lab.load.sse import EventSplitter
from paceline.lab.load.target import CHAT_PATH, COMPLETIONS_PATH

EXACT_TOKENS = 24  # longer than a model's own answer to QUESTION
QUESTION = "Answer with one word and nothing else: what is the capital of France?"
PROBE_IDS = [101, 102, 103]


class Abilities(msgspec.Struct, kw_only=True):
    """Filled in as calls are tried."""

    kind: str
    model: str
    chat: bool = True
    chunk_counts: str = ""
    final_usage: bool = False
    cached_tokens: bool = False
    timings: bool = False
    exact: bool = False  # an answer had the length that was asked for
    exact_shown: bool = False  # and without being asked for, it would have been shorter
    token_ids: bool = False
    stream_options: bool = True
    max_tokens_field: str = "max_tokens"

    def ask(self, **more: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of a small request."""
        if not self.chat:
            body: dict[str, Any] = {"model": self.model, "prompt": QUESTION, "max_tokens": EXACT_TOKENS}
            return COMPLETIONS_PATH, body | {"temperature": 0.0} | more
        body = {"model": self.model, "messages": [{"role": "user", "content": QUESTION}]}
        return CHAT_PATH, body | {self.max_tokens_field: EXACT_TOKENS, "temperature": 0.0} | more


async def try_answers(control: Control, can: Abilities) -> None:
    """A streamed answer with all that might be understood; where it is refused, with less and less.

    Raises LabError when not even a plain request is answered.
    """
    exact = {"ignore_eos": True, "min_tokens": EXACT_TOKENS}
    usage: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    counted: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    own: dict[str, Any] = {}
    if can.kind == "paceline":
        own, counted = {"timings": True}, usage  # its chunks carry their counts in any case
    elif can.kind == "llama.cpp":
        own, counted = {"timings_per_token": True}, usage
    tries = [exact | counted | own, exact | counted, exact | usage, counted, usage, {"stream": True}]
    asked: dict[str, Any] = {}
    answer: Answer | None = None
    for asked in tries:
        answer = await _streamed(control, can, asked)
        if answer is not None:
            break
    if answer is None:
        return
    can.stream_options = "stream_options" in asked
    can.final_usage = answer.completion_tokens >= 0
    can.cached_tokens = answer.cached_tokens >= 0
    can.chunk_counts = _how_counted(can.kind, answer)
    can.timings = "queue_ms" in answer.server
    can.exact = "ignore_eos" in asked and answer.num_tokens == EXACT_TOKENS
    if can.exact and can.kind == "openai":
        plain = await _streamed(control, can, {**usage} if can.stream_options else {"stream": True})
        can.exact_shown = plain is not None and 0 <= plain.num_tokens < EXACT_TOKENS


async def try_token_ids(control: Control, can: Abilities) -> None:
    """Three ids as a prompt must be counted as three tokens."""
    body = {"model": can.model, "prompt": PROBE_IDS, "max_tokens": 1, "temperature": 0.0}
    reply = await control.post(COMPLETIONS_PATH, body)
    usage = reply.object.get("usage")
    can.token_ids = isinstance(usage, dict) and usage.get("prompt_tokens") == len(PROBE_IDS)


async def try_tokenize(control: Control, model: str) -> str:
    """The form of /tokenize: "prompt", "content" or ""."""
    text = "one two three"
    reply = await control.post("/tokenize", {"model": model, "prompt": text})
    if isinstance(reply.object.get("count"), int) and reply.object["count"] > 0:
        return "prompt"
    reply = await control.post("/tokenize", {"content": text})
    return "content" if reply.object.get("tokens") else ""


async def _streamed(control: Control, can: Abilities, more: dict[str, Any]) -> Answer | None:
    """The answer, or None if this form of request is refused."""
    path, body = can.ask(**more)
    reply = await control.post(path, body)
    other_field = b"max_completion_tokens" in reply.content and can.max_tokens_field == "max_tokens"
    if reply.status in (400, 422) and other_field:
        can.max_tokens_field = "max_completion_tokens"
        path, body = can.ask(**more)
        reply = await control.post(path, body)
    if not reply.ok and can.chat and (reply.status in (404, 405) or b"chat template" in reply.content.lower()):
        can.chat = False  # a base model, or a server without conversations
        path, body = can.ask(**more)
        reply = await control.post(path, body)
    if reply.ok:
        return _read(reply)
    if reply.status in (401, 403, 404, 429) or reply.status >= 500:
        raise LabError("the server does not answer requests", seen=reply.words, fix="send one by hand: see its log")
    if more == {"stream": True}:
        raise LabError("the server refuses a plain request", seen=reply.words)
    return None


def _read(reply: Reply) -> Answer:
    answer = Answer()
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        splitter = EventSplitter()
        for event in [*splitter.feed(reply.content), *splitter.end()]:
            answer.on_event(event, 0)
    else:
        answer.on_whole(reply.content, 0)
    if answer.error is not None:
        raise LabError("the server answers with an error", seen=answer.error)
    return answer


def _how_counted(kind: str, answer: Answer) -> str:
    """By what the chunks tell their tokens; "" if the counts do not add up to the whole."""
    counts = [chunk.num_tokens for chunk in answer.chunks if chunk.num_tokens >= 0]
    whole = answer.completion_tokens
    if not counts or (whole >= 0 and abs(sum(counts) - whole) > 1):
        return ""
    return {"paceline": "paceline", "llama.cpp": "timings"}.get(kind, "continuous")
