"""An answer as a row of blocks, one open at a time: reasoning, text, calls of functions.

What /v1/responses and /v1/messages have in common: which piece of the answer begins, continues and ends which block.
How blocks are worded, each endpoint says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from paceline.server.api.writer import finish_reason
from paceline.text.reading import ArgumentsDelta, CallEnded, CallStarted, Reasoning, Text

if TYPE_CHECKING:
    from paceline.server.api.choice import Choice, News
    from paceline.server.api.generation import Generation
    from paceline.text.reading import Piece

Kind = Literal["reasoning", "text", "call"]


@dataclass(eq=False)
class Block:
    """`index` is its place in the answer."""

    index: int
    kind: Kind
    name: str = ""  # of a call
    call_id: str = ""
    parts: list[str] = field(default_factory=list)
    whole: bool = True  # False: the answer ended within it, or a call was broken off

    @property
    def text(self) -> str:
        """Its text, or the arguments of a call."""
        return "".join(self.parts)


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


class BlockWriter(ABC):
    """State of one answer, which is one choice."""

    end_mark = b""

    def __init__(self, generation: Generation, model: str) -> None:
        self.generation = generation
        self.model = model
        self.blocks: list[Block] = []
        self.last: News | None = None  # the one with the end
        self._open: Block | None = None
        self._begun = False

    @property
    def choice(self) -> Choice:
        (choice,) = self.generation.choices
        return choice

    @property
    def cut(self) -> bool:
        """A limit ended the answer."""
        return self.last is not None and finish_reason(self.last) == "length"

    # --- events

    def events(self, choice: Choice, news: News) -> bytes:
        parts: list[bytes] = []
        if not self._begun:
            self._begun = True
            parts.append(self.beginning())
        for piece in news.pieces:
            self._take(piece, parts)
        if news.finish is not None:
            self.last = news
            self._close(parts, whole=not self.cut)
        return b"".join(parts)

    def _take(self, piece: Piece, parts: list[bytes]) -> None:
        match piece:
            case Text(text):
                self._add(self._block("text", parts), text, parts)
            case Reasoning(text):
                self._add(self._block("reasoning", parts), text, parts)
            case CallStarted(_, name, call_id):
                self._close(parts)
                self._begin(Block(len(self.blocks), "call", name, call_id or ""), parts)
            case ArgumentsDelta(_, text):
                assert self._open is not None
                self._add(self._open, text, parts)
            case CallEnded(_, outcome, _):
                self._close(parts, whole=outcome == "complete")

    def _block(self, kind: Kind, parts: list[bytes]) -> Block:
        """The open block, or a new one."""
        if self._open is None or self._open.kind != kind:
            self._close(parts)
            self._begin(Block(len(self.blocks), kind), parts)
        assert self._open is not None
        return self._open

    def _begin(self, block: Block, parts: list[bytes]) -> None:
        self.blocks.append(block)
        self._open = block
        parts.append(self.opened(block))

    def _add(self, block: Block, text: str, parts: list[bytes]) -> None:
        block.parts.append(text)
        parts.append(self.delta(block, text))

    def _close(self, parts: list[bytes], *, whole: bool = True) -> None:
        if self._open is not None:
            block, self._open = self._open, None
            block.whole = whole
            parts.append(self.closed(block))

    # --- whole

    def collect(self, choice: Choice, news: News) -> None:
        if news.finish is not None:
            self.last = news

    def take_message(self) -> None:
        """Blocks of an answer that was not streamed."""
        for part in self.choice.message.parts:
            index = len(self.blocks)
            match part:
                case Text(text):
                    self.blocks.append(Block(index, "text", parts=[text]))
                case Reasoning(text):
                    self.blocks.append(Block(index, "reasoning", parts=[text]))
                case call:
                    self.blocks.append(Block(index, "call", call.name, call.id or "", [call.arguments]))
        if self.blocks and self.cut:
            last = self.blocks[-1]
            last.whole = last.kind == "call" and is_json(last.text)

    # --- for the endpoint to word

    @abstractmethod
    def beginning(self) -> bytes:
        """Events before the first block."""

    @abstractmethod
    def opened(self, block: Block) -> bytes:
        """A block begins."""

    @abstractmethod
    def delta(self, block: Block, text: str) -> bytes:
        """It goes on with `text`, which it has already."""

    @abstractmethod
    def closed(self, block: Block) -> bytes:
        """It has ended."""

    @abstractmethod
    def last_events(self) -> bytes:
        """The end of the answer."""

    @abstractmethod
    def error_event(self, error: Exception) -> bytes:
        """What went wrong once events have begun."""

    @abstractmethod
    def whole(self) -> bytes:
        """The answer as one JSON value."""
