"""Answers that are not streamed, and the timings a server tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.contracts.artefact import ChunkKind
from paceline.lab.mock.script import Flavour, ScriptChunk
from paceline.lab.mock.wording import CREATED, MARK, Voice


def whole_answer(
    voice: Voice, chunks: Sequence[ScriptChunk], finish: str, usage: dict[str, Any] | None, num_tokens: int
) -> dict[str, Any]:
    """The chunks of a script joined into one answer."""
    texts = {kind: "".join(c.text for c in chunks if c.kind is kind) for kind in ChunkKind}
    choice: dict[str, Any] = {"index": 0}
    for chunk in chunks:
        choice |= chunk.extra
    if voice.chat:
        calls = _calls(chunks)
        content = texts[ChunkKind.CONTENT]
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not content else content}
        if texts[ChunkKind.REASONING]:
            message[voice.reasoning_field] = texts[ChunkKind.REASONING]
        if calls:
            message["tool_calls"] = calls
        choice["message"] = message
    else:
        choice["text"] = texts[ChunkKind.CONTENT]
    choice["finish_reason"] = finish
    value: dict[str, Any] = {
        "id": ("chatcmpl-" if voice.chat else "cmpl-") + MARK.decode(),
        "object": "chat.completion" if voice.chat else "text_completion",
        "created": CREATED,
        "model": voice.model,
        "choices": [choice],
    }
    if usage is not None:
        value["usage"] = usage
    if voice.flavour is Flavour.PACELINE:
        value["paceline"] = {"num_tokens": num_tokens}
    return value


def _calls(chunks: Sequence[ScriptChunk]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        if chunk.kind is not ChunkKind.TOOL:
            continue
        if chunk.tool is not None or not calls:
            function = {"name": chunk.tool or "", "arguments": ""}
            calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
        calls[-1]["function"]["arguments"] += chunk.text
    return calls


def paceline_timings(
    *, queue_ns: int, first_ns: int, last_ns: int, num_later: int, cached_tokens: int, computed_tokens: int
) -> dict[str, Any]:
    """As paceline's server says them, from the schedule. `num_later`: tokens after the first chunk."""
    tpot = (last_ns - first_ns) / num_later / 1e6 if num_later else None
    return {
        "server_ms": 0.0,
        "queue_ms": queue_ns / 1e6,
        "prefill_ms": first_ns / 1e6,
        "ttft_ms": (queue_ns + first_ns) / 1e6,
        "tpot_ms": tpot,
        "e2e_ms": (queue_ns + last_ns) / 1e6,
        "blocks_freed_ms": (queue_ns + last_ns) / 1e6,
        "cached_tokens": cached_tokens,
        "computed_tokens": computed_tokens,
        "preemptions": 0,
    }


def llama_timings(
    *, first_ns: int, last_ns: int, num_tokens: int, cached_tokens: int, computed_tokens: int
) -> dict[str, Any]:
    """As llama-server says them."""
    prompt_ms, predicted_ms = first_ns / 1e6, (last_ns - first_ns) / 1e6
    return {
        "cache_n": cached_tokens,
        "prompt_n": computed_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_second": computed_tokens / prompt_ms * 1e3 if prompt_ms else None,
        "predicted_n": num_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_second": num_tokens / predicted_ms * 1e3 if predicted_ms else None,
    }
