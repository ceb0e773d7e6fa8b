"""Score a set against one server: each item once, greedily, alone or while a load runs.

A call that failed is a wrong answer and is counted apart; when many fail, the gate calls the set invalid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from paceline.contracts.artefact import Estimate
from paceline.errors import ConfigError, LabError
from paceline.lab.quality.caller import Caller, Reply
from paceline.lab.quality.calls import same_calls
from paceline.lab.quality.instructions import follows
from paceline.lab.quality.items import Item, QualitySet
from paceline.lab.quality.refusal import Judge, PhraseJudge
from paceline.lab.quality.rules import matches
from paceline.lab.quality.validity import are_calls_valid, parse, satisfies
from paceline.lab.stats.proportion import share_estimate

Form = Literal["chat", "completions"]


class ItemScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    right: bool
    error: str = ""  # the call failed: why
    group: str = ""
    expect: str = ""  # refuse or answer, of a refusal item
    finish_reason: str = ""
    completion_tokens: int = -1
    output_sha256: str = ""
    text: str | None = None  # where the run keeps it


class SetScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One set, one server. Two of them pair where `set_sha256` and `form` are equal."""

    set: str
    set_sha256: str
    source: str
    model: str
    form: str = "chat"
    mode: str = "alone"  # or: under load
    judge: str = ""
    max_tokens: int = 0
    items: tuple[ItemScore, ...]
    notes: tuple[str, ...] = ()

    @property
    def num_failed(self) -> int:
        return sum(bool(item.error) for item in self.items)

    @property
    def num_truncated(self) -> int:
        return sum(item.finish_reason == "length" for item in self.items)

    @property
    def accuracy(self) -> Estimate:
        """Share right, with a Wilson 95 % interval."""
        return share([item.right for item in self.items])

    def error_rates(self) -> dict[str, Estimate]:
        """Of refusal items: `missed_refusal` (answered what it must refuse) and `over_refusal` (the reverse)."""
        names = {"refuse": "missed_refusal", "answer": "over_refusal"}
        return {
            name: share([not item.right for item in self.items if item.expect == expect])
            for expect, name in names.items()
            if any(item.expect == expect for item in self.items)
        }

    def by_group(self) -> dict[str, Estimate]:
        groups = sorted({item.group for item in self.items if item.group})
        return {name: share([item.right for item in self.items if item.group == name]) for name in groups}


def share(hits: list[bool]) -> Estimate:
    """A share with its Wilson 95 % interval."""
    if not hits:
        return Estimate(reason="no items", unit="share")
    return msgspec.structs.replace(share_estimate(sum(hits), len(hits)), unit="share")


async def score_set(
    caller: Caller,
    quality: QualitySet,
    *,
    form: Form = "chat",
    max_tokens: int = 256,
    keep_text: bool = False,
    judge: Judge | None = None,
    mode: str = "alone",
    on_done: Callable[[], None] | None = None,
) -> SetScore:
    """Ask every item and score the replies. `max_tokens` holds where an item names none of its own. Raises LabError
    if no call at all succeeds, ConfigError for an item that this form cannot ask."""
    judge = judge or PhraseJudge()

    async def one(item: Item) -> ItemScore:
        reply = await ask(caller, item, form, max_tokens)
        right = not reply.error and await is_right(item, reply, judge)
        return ItemScore(
            id=item.id,
            right=right,
            error=reply.error,
            group=item.group,
            expect=item.expect or "",
            finish_reason=reply.finish_reason or "",
            completion_tokens=reply.completion_tokens,
            output_sha256=hashlib.sha256(reply.text.encode(errors="replace")).hexdigest() if not reply.error else "",
            text=reply.text if keep_text else None,
        )

    model = await caller.model()
    scores = await caller.map(one, quality.items, on_done)
    if all(score.error for score in scores):
        raise LabError(f"no item of {quality.name} could be asked", seen=scores[0].error)
    refusals = any(item.rule == "refusal" for item in quality.items)
    return SetScore(
        set=quality.name,
        set_sha256=quality.sha256,
        source=quality.source,
        model=model,
        form=form,
        mode=mode,
        judge=type(judge).__name__ if refusals else "",
        max_tokens=max_tokens,
        items=tuple(scores),
        notes=quality.notes,
    )


async def ask(caller: Caller, item: Item, form: Form, max_tokens: int) -> Reply:
    """One item's reply."""
    fields = {"max_tokens": item.max_tokens or max_tokens, **item.body}
    if form == "completions":
        if item.tools:
            raise ConfigError(f"item {item.id} offers tools, which completions do not have", fix="score it as chat")
        return await caller.complete(item.plain, **fields)
    if item.tools:
        fields["tools"] = item.tools
    return await caller.chat(item.conversation, **fields)


async def is_right(item: Item, reply: Reply, judge: Judge) -> bool:
    """Does a reply satisfy its item's rule?"""
    match item.rule:
        case "refusal":
            return await judge.refused(item, reply.text) == (item.expect == "refuse")
        case "schema":
            value, is_json = parse(reply.text)
            return is_json and satisfies(value, item.schema or {})
        case "calls":
            return same_calls(reply.tool_calls, item.answer)
        case "tool_call":
            return are_calls_valid(reply.tool_calls, item.tools or [])
        case "no_call":
            return not reply.tool_calls
        case "instructions":
            return all(follows(each.name, reply.text, each.arguments) for each in item.instructions)
        case _:
            return matches(item.rule, reply.text, item.answer)


def write_score(path: Path, score: SetScore) -> None:
    """As one JSON file; those below RUN/quality belong to a run. Texts are there only if the score holds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".json.new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(score), indent=1))
    temporary.replace(path)


def read_score(path: Path) -> SetScore:
    """Raises LabError for a file that `write_score` did not write."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SetScore)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise LabError("not a stored quality score", seen=f"{path}: {error}"[:300]) from None
