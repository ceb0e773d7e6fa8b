"""Items of a quality set: a prompt, and the rule by which a reply is right. Sets are JSON lines.

    {"id": "sum-1", "prompt": "What is 17 + 25?", "rule": "number", "answer": "42"}
    {"id": "refuse-1", "prompt": "...", "rule": "refusal", "expect": "refuse"}

Rules are listed in `rules`. Other files load through `readers`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from paceline.errors import ConfigError
from paceline.lab.quality.rules import TEXT_RULES

OTHER_RULES = ("schema", "calls", "tool_call", "no_call", "instructions", "refusal")
RULES = (*TEXT_RULES, *OTHER_RULES)


class Instruction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str  # e.g. punctuation:no_comma
    arguments: dict[str, Any] = {}


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One question. `prompt` is a user's message, or plain text where a set is scored through completions."""

    id: str
    rule: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    answer: Any = None
    group: str = ""  # for tables by kind
    expect: Literal["refuse", "answer"] | None = None  # rule refusal
    tools: list[dict[str, Any]] | None = None
    schema: dict[str, Any] | None = None
    instructions: list[Instruction] = []
    max_tokens: int | None = None
    body: dict[str, Any] = {}  # further fields of the request

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """As chat messages."""
        return self.messages if self.messages is not None else [{"role": "user", "content": self.prompt or ""}]

    @property
    def plain(self) -> str:
        """As one text, for models without a chat template."""
        if self.prompt is not None:
            return self.prompt
        return "\n\n".join(str(m.get("content") or "") for m in self.messages or ())


class QualitySet(msgspec.Struct, frozen=True, kw_only=True):
    """Items with what a reader must know of them."""

    name: str
    items: tuple[Item, ...]
    source: str = ""  # "shipped", or the file's name
    num_left_out: int = 0  # items of the file that this lab cannot check
    notes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Of the items: two scores pair only where it is equal."""
        return hashlib.sha256(msgspec.json.encode(self.items)).hexdigest()


def check_item(item: Item, where: str) -> None:
    """Raises ConfigError for an item that could not be scored."""
    if item.rule not in RULES:
        raise ConfigError(f"{where}: no rule of this name", seen=item.rule, expected=", ".join(RULES))
    if (item.prompt is None) == (item.messages is None):
        raise ConfigError(f"{where}: an item has a prompt or messages, and only one of them", seen=item.id)
    needs: dict[str, bool] = {
        "refusal": item.expect is not None,
        "schema": item.schema is not None,
        "calls": bool(item.tools) and isinstance(item.answer, list),
        "tool_call": bool(item.tools),
        "no_call": bool(item.tools),
        "instructions": bool(item.instructions),
    }
    if not needs.get(item.rule, item.answer is not None):
        raise ConfigError(
            f"{where}: rule {item.rule} lacks what it compares with",
            seen=item.id,
            expected="answer; or expect, schema, tools and answer, instructions, as the rule asks",
        )


def take(items: Sequence[Item], limit: int | None, seed: int) -> tuple[Item, ...]:
    """All items, or a drawn sample of them in their order; the same seed draws the same."""
    if limit is None or limit >= len(items):
        return tuple(items)
    chosen = sorted(random.Random(f"quality:{seed}").sample(range(len(items)), limit))
    return tuple(items[i] for i in chosen)
