"""An answer told apart while it comes: reasoning, text and tool calls, from the text of one sequence.

    reading = Reading(reasoning=..., inside=..., format="hermes", tools=tools)
    reader = reading.reader(tokenizer)                          -> one for each sequence
    stream = pipeline.stream(shown=reading.shown(tokenizer))    -> markers that are special tokens must show
    for delta in deltas: pieces += reader.push(delta.text, delta.token_ids)
    pieces += reader.finish(cut=...)
    reader.message                                              -> the whole, for an answer that is not streamed

Pieces joined are the message, however the text was cut. One thing differs: a call that the model broke off has been
given out in pieces by then; the message has it as the text that it is.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from paceline.text.reasoning import Reasoning, ReasoningFormat, ReasoningSplitter
from paceline.text.tools import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Text,
    Tidied,
    ToolCall,
    ToolSpec,
    get_format,
    make_parser,
)

if TYPE_CHECKING:
    from paceline.text.tokenizer import TextTokenizer

Piece: TypeAlias = Reasoning | Text | CallStarted | ArgumentsDelta | CallEnded
Part: TypeAlias = Reasoning | Text | ToolCall

__all__ = [
    "AnswerReader",
    "ArgumentsDelta",
    "CallEnded",
    "CallStarted",
    "Message",
    "Part",
    "Piece",
    "Reading",
    "Reasoning",
    "Text",
    "ToolCall",
]

_LETTERS = string.ascii_letters + string.digits


class Reading(msgspec.Struct, frozen=True):
    """What to look for in the answers of one request."""

    reasoning: ReasoningFormat | None = None
    inside: bool = False  # the prompt ends inside reasoning
    format: str | None = None  # of calls; None: what looks like one is text
    tools: tuple[ToolSpec, ...] = ()
    parallel: bool = True  # False: calls behind the first whole one are left out
    show_reasoning: bool = True  # False: it is counted, and left out

    def reader(self, tokenizer: TextTokenizer) -> AnswerReader:
        """For one sequence."""
        return AnswerReader(self, tokenizer)

    def shown(self, tokenizer: TextTokenizer) -> frozenset[int]:
        """Ids of special tokens that are markers: the reader has to see them."""
        markers = set(get_format(self.format).markers) if self.format is not None else set()
        if self.reasoning is not None:
            markers |= {self.reasoning.begin, self.reasoning.end}
        return _ids_of(tokenizer, frozenset(markers))


@lru_cache(maxsize=32)
def _ids_of(tokenizer: TextTokenizer, markers: frozenset[str]) -> frozenset[int]:
    return frozenset(index for index in tokenizer.special_ids if tokenizer.added_text[index] in markers)


class Message(msgspec.Struct, frozen=True):
    """A whole answer. Neighbours of a kind are one part."""

    parts: list[Part]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]


class AnswerReader:
    """Of one sequence. After `finish` nothing more is pushed."""

    def __init__(self, reading: Reading, tokenizer: TextTokenizer) -> None:
        self._reading = reading
        self._splitter: ReasoningSplitter | None = None
        self._counter: _Counter | None = None
        if reading.reasoning is not None:
            self._splitter = ReasoningSplitter(reading.reasoning, inside=reading.inside)
            self._counter = _Counter(tokenizer, reading.shown(tokenizer), reading.reasoning.end)
        self._parser = None if reading.format is None else Tidied(make_parser(reading.format, reading.tools))
        self._pieces: list[Piece] = []
        self._left_out = False  # the call that is open
        self.called = False  # there is a whole call

    def push(self, text: str, token_ids: Sequence[int] = ()) -> list[Piece]:
        """Pieces that became certain. `token_ids`: those that came since the last time, whether or not `text` has all
        of theirs."""
        if self._counter is not None:
            self._counter.push(token_ids)
        if not text:
            return []
        events: list[Event | Reasoning] = [Text(text)]
        if self._splitter is not None:
            events = [*self._splitter.feed(text)]
        return self._kept(events, cut=False)

    def finish(self, *, cut: bool) -> list[Piece]:
        """The rest. `cut`: a limit on tokens or time ended the answer, not the model or a stop string. A call that is
        open then is a beginning; otherwise it is broken: nobody meant to end it."""
        events: list[Event | Reasoning] = []
        if self._splitter is not None:
            events += self._splitter.finish()
        pieces = self._kept(events, cut=cut)
        if self._parser is not None:
            pieces += self._given(self._parser.finish(), cut=cut)
        return pieces

    @property
    def message(self) -> Message:
        """All pieces so far."""
        return Message(_joined(self._pieces))

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens up to the end of reasoning, markers included; None where none is looked for."""
        if self._counter is None or self._splitter is None:
            return None
        return self._counter.num_tokens if self._splitter.found else 0

    def _kept(self, events: Iterable[Event | Reasoning], *, cut: bool) -> list[Piece]:
        """Text goes through the parser."""
        pieces: list[Piece] = []
        for event in events:
            if isinstance(event, Text) and self._parser is not None:
                pieces += self._given(self._parser.feed(event.text), cut=cut)
            else:
                pieces += self._given([event], cut=cut)
        return pieces

    def _given(self, events: Iterable[Event | Reasoning], *, cut: bool) -> list[Piece]:
        """As the client is to have them."""
        pieces: list[Piece] = []
        for event in events:
            piece: Piece | None = event
            match event:
                case Reasoning():
                    piece = event if self._reading.show_reasoning else None
                case CallStarted(index, name, _):
                    self._left_out = self.called and not self._reading.parallel
                    piece = None if self._left_out else CallStarted(index, name, self._new_id())
                case ArgumentsDelta():
                    piece = None if self._left_out else event
                case CallEnded(index, outcome, raw):
                    if outcome == "cut" and not cut:
                        piece = CallEnded(index, "broken", raw)
                    elif outcome == "complete":
                        self.called = True
                    if self._left_out:
                        piece = Text(raw) if isinstance(piece, CallEnded) and piece.outcome == "broken" else None
                    self._left_out = False
            if piece is not None:
                pieces.append(piece)
        self._pieces += pieces
        return pieces

    def _new_id(self) -> str:
        """Templates of Mistral take nine letters or digits and nothing else."""
        if (self._reading.format or "").startswith("mistral"):
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


class _Counter:
    """Counts tokens up to the one that completes a marker, over their bytes: their text may come later."""

    def __init__(self, tokenizer: TextTokenizer, shown: frozenset[int], end: str) -> None:
        self._tokenizer, self._shown, self._end = tokenizer, shown, end.encode()
        self._tail = b""
        self._ended = False
        self.num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> None:
        if self._ended:
            return
        table = self._tokenizer.token_bytes()
        for index in token_ids:
            self.num_tokens += 1
            known = table[index] if 0 <= index < len(table) else b""
            self._tail += self._tokenizer.bytes_of(index) if index in self._shown else known
            if self._end in self._tail:
                self._ended = True
                return
            self._tail = self._tail[-len(self._end) :]


def _joined(pieces: Iterable[Piece]) -> list[Part]:
    parts: list[Part] = []
    texts: list[str] = []
    kind: type[Reasoning] | type[Text] = Text
    call: CallStarted | None = None
    arguments: list[str] = []

    def close() -> None:
        if texts:
            parts.append(kind("".join(texts)))
            texts.clear()

    def add(of: type[Reasoning] | type[Text], text: str) -> None:
        nonlocal kind
        if kind is not of:
            close()
            kind = of
        if text:
            texts.append(text)

    for piece in pieces:
        match piece:
            case Reasoning(text) | Text(text):
                add(type(piece), text)
            case CallStarted():
                call = piece
                arguments.clear()
            case ArgumentsDelta(_, text):
                arguments.append(text)
            case CallEnded(_, "broken", raw):
                add(Text, raw)
            case CallEnded():
                assert call is not None
                close()
                parts.append(ToolCall(call.name, "".join(arguments), call.id, piece.complete))
    close()
    return parts
