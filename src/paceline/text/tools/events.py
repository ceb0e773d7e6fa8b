"""Tools, calls, and what a parser says while the text of an answer comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

Outcome = Literal["complete", "cut", "broken"]


class ToolSpec(msgspec.Struct, frozen=True):
    """A function the model may call. `parameters` is a JSON schema of an object; None: it takes no arguments. `strict`:
    a grammar must enforce every keyword of the schema, or refuse it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a function. `arguments` is JSON text of an object, as the model wrote it; only the beginning of one
    where it is not `whole`, because the answer ended within."""

    name: str
    arguments: str
    id: str | None = None
    whole: bool = True


class Text(msgspec.Struct, frozen=True):
    """Text outside of calls, exactly as it came."""

    text: str


class CallStarted(msgspec.Struct, frozen=True):
    """A call begins. Calls of an answer count from 0. Formats have no ids: whoever answers a client gives them."""

    index: int
    name: str
    id: str = ""


class ArgumentsDelta(msgspec.Struct, frozen=True):
    """The next piece of a call's arguments. All pieces of a complete call, joined, are JSON text of an object."""

    index: int
    text: str


class CallEnded(msgspec.Struct, frozen=True):
    """A call ends.

    complete  its arguments are whole
    cut       the answer ended within it: the arguments are a beginning only
    broken    what came next is no call of this format. What follows is text again
    """

    index: int
    outcome: Outcome
    raw: str  # the call as it was written, with its markers as far as they came

    @property
    def complete(self) -> bool:
        return self.outcome == "complete"


Event: TypeAlias = Text | CallStarted | ArgumentsDelta | CallEnded


class ToolParser(Protocol):
    """Text of one answer in any portions; events as soon as they are certain. After `finish` nothing more is fed."""

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class Parsed(msgspec.Struct, frozen=True):
    """A whole answer: its text, its calls, and whether the last of them was cut."""

    text: str
    calls: list[ToolCall]
    cut: bool = False


def collect(events: Iterable[Event]) -> Parsed:
    """All events of an answer as one value, for an answer that is not streamed. A broken call is put back into the text
    as it was written; a cut one stays, with the arguments it has."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    name, pieces, cut = "", list[str](), False
    for event in events:
        match event:
            case Text(text):
                texts.append(text)
            case CallStarted(_, name, _):
                pieces = []
            case ArgumentsDelta(_, text):
                pieces.append(text)
            case CallEnded(_, "broken", raw):
                texts.append(raw)
            case CallEnded(_, outcome, _):
                cut = outcome == "cut"
                calls.append(ToolCall(name, "".join(pieces), whole=not cut))
    return Parsed("".join(texts), calls, cut)


class Tidied:
    """A parser whose text has no white space next to calls: templates write a line break there that is not the model's
    message. All other text stays as it is. White space that may be such is held back until more comes; where the call
    was none in the end, the white space is part of its `raw`."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self._space = ""  # white space that came last
        self._before = ""  # that came before the open call
        self._after_call = False

    def feed(self, text: str) -> list[Event]:
        return self._tidy(self._parser.feed(text))

    def finish(self) -> list[Event]:
        events = self._tidy(self._parser.finish())
        if self._space and not self._after_call:
            events.append(Text(self._space))
        self._space = ""
        return events

    def _tidy(self, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            if not isinstance(event, Text):
                kept.append(self._around(event))
                continue
            text = self._space + event.text
            if self._after_call:
                text = text.lstrip()
            body = text.rstrip()
            self._space = text[len(body) :]
            if body:
                self._after_call = False
                kept.append(Text(body))
        return kept

    def _around(self, event: Event) -> Event:
        """An event of a call, and what becomes of the white space next to it."""
        if isinstance(event, CallStarted):
            self._before, self._space = self._space, ""
        elif isinstance(event, CallEnded):
            self._after_call = event.outcome != "broken"
            return CallEnded(event.index, event.outcome, event.raw if event.complete else self._before + event.raw)
        return event
