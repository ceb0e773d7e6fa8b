"""Reasoning: what stands between `<think>` and `</think>`, told apart from the answer while it comes.

    format = detect_reasoning(template)
    splitter = ReasoningSplitter(format, inside=format.is_open(prompt))
    for text in deltas: events += splitter.feed(text)         -> Reasoning, Text
    events += splitter.finish()

Reasoning stands at the beginning of an answer, once. Markers elsewhere are text: an answer may speak of them. Where the
template has opened it in the prompt, the answer begins inside; an opening marker that the model writes all the same is
left out. Without an end (the answer was cut) all of it is reasoning. White space next to the markers belongs to neither
side and is left out; all other text comes out exactly, and events do not depend on how it was cut.

Where markers are special tokens, the text must have them shown.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from paceline.errors import ConfigError
from paceline.text.tools.events import Text
from paceline.text.tools.reader import beginning_of


class ReasoningFormat(msgspec.Struct, frozen=True):
    """The markers around reasoning."""

    begin: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Does a rendered prompt end inside reasoning, so that the answer goes on with it?"""
        return prompt.rstrip().endswith(self.begin)


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of reasoning."""

    text: str


ReasoningEvent: TypeAlias = Reasoning | Text

FORMATS: dict[str, ReasoningFormat] = {
    "think": ReasoningFormat("<think>", "</think>"),  # DeepSeek R1, Qwen 3, QwQ, SmolLM3 and most others
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "thinking": ReasoningFormat("<thinking>", "</thinking>"),
    "seed": ReasoningFormat("<seed:think>", "</seed:think>"),
    "thought": ReasoningFormat("<|begin_of_thought|>", "<|end_of_thought|>"),
}


def get_reasoning(name: str) -> ReasoningFormat:
    """Raises ConfigError for one that does not exist."""
    found = FORMATS.get(name)
    if found is None:
        raise ConfigError(
            "there are no markers of reasoning of this name", seen=f"{name!r:.80}", expected=", ".join(FORMATS)
        )
    return found


def detect_reasoning(chat_template: str | None) -> ReasoningFormat | None:
    """By the end marker that a template writes, or takes out of earlier turns; None when it knows of no reasoning."""
    for each in FORMATS.values():
        if chat_template is not None and each.end in chat_template:
            return each
    return None


class ReasoningSplitter:
    """For one answer. `inside`: the prompt ends inside reasoning. After `finish` nothing more is fed."""

    def __init__(self, format: ReasoningFormat, *, inside: bool = False) -> None:
        self.format = format
        self.inside = inside  # what comes next is reasoning, as far as is known
        self.found = inside  # there is reasoning, be it empty
        self._held = ""  # not certain yet: white space, or what may be a marker
        self._state: Literal["start", "first", "reasoning", "after", "text"] = "start"

    def feed(self, text: str) -> list[ReasoningEvent]:
        """Events that became certain with `text`."""
        self._held += text
        return self._read(ended=False)

    def finish(self) -> list[ReasoningEvent]:
        """The rest, when no more text comes."""
        return self._read(ended=True)

    def _read(self, *, ended: bool) -> list[ReasoningEvent]:
        events: list[ReasoningEvent] = []
        if self._state == "start":
            self._read_start(ended)
        if self._state in ("first", "reasoning"):
            self._read_reasoning(events, ended)
        if self._state == "after" and self._held.lstrip():
            self._held, self._state = self._held.lstrip(), "text"
        if self._state == "text" and self._held:
            events.append(Text(self._held))
            self._held = ""
        return events

    def _read_start(self, ended: bool) -> None:
        body, begin = self._held.lstrip(), self.format.begin
        if body.startswith(begin):
            self._held, self._state, self.inside, self.found = body[len(begin) :], "first", True, True
        elif ended or not begin.startswith(body):
            self._state = "first" if self.inside else "text"

    def _read_reasoning(self, events: list[ReasoningEvent], ended: bool) -> None:
        if self._state == "first":
            self._held = self._held.lstrip()
        body, marker, rest = self._held.partition(self.format.end)
        if marker:
            sure, self._held = body.rstrip(), rest
            self._state, self.inside = "after", False
        elif ended:
            sure, self._held = body, ""
        else:
            sure = body[: len(body) - beginning_of(body, [self.format.end])].rstrip()
            self._held = body[len(sure) :]
        if sure:
            events.append(Reasoning(sure))
            if self._state == "first":
                self._state = "reasoning"
