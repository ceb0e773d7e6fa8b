"""Scripted servers whose quality is known: right or wrong on a set of sums, and what they think of given tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

NUM_ITEMS = 12
TEXTS = ("t70 t71 t72", "t80 t81 t82")  # the mock's words for ids


def write_inputs(folder: Path) -> None:
    """A set and texts, beside a spec."""
    items = [
        {"id": f"sum-{i}", "rule": "number", "prompt": f"sum item {i}", "answer": "42", "max_tokens": 8}
        for i in range(NUM_ITEMS)
    ]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, items)) + "\n")
    (folder / "texts.txt").write_text("\n\n".join(TEXTS))


def arm(*, answer: str = "42", sure: float = 0.9, **more: Any) -> dict[str, Any]:
    """A script: `answer` to every sum; each next token of `TEXTS` has the probability `sure`, another the rest."""
    thoughts = [
        {
            "match": {"path": "/v1/completions", "contains": text},
            "reply": {"chunks": [{"text": "x", "extra": {"prompt_logprobs": _thoughts(text, sure)}}]},
        }
        for text in TEXTS
    ]
    sums = {"match": {"contains": "sum item"}, "reply": {"chunks": [{"text": answer}]}}
    return {"rules": [sums, *thoughts], **more}


def kl(before: float, after: float) -> float:
    """Of two arms, in nats, at every position."""
    return before * math.log(before / after) + (1 - before) * math.log((1 - before) / (1 - after))


def _thoughts(text: str, sure: float) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = [None]
    for word in text.split()[1:]:
        found.append({word[1:]: {"logprob": math.log(sure)}, "99": {"logprob": math.log(1 - sure)}})
    return found
