"""An answer as a row of blocks, one open at a time: reasoning, text, calls of functions.

What /v1/responses and /v1/messages have in common: which piece of the answer begins, continues and ends which block.
How blocks are worded, each endpoint says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

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
        self._begin_once(parts)
        for piece in news.pieces:
            self._take(piece, parts)
        if news.finish is not None:
            self.last = news
            self._close(parts, whole=not self.cut)
        return b"".join(parts)

    def error_event(self, error: Exception) -> bytes:
        """What went wrong once the stream is open; that may be before the first event."""
        parts: list[bytes] = []
        self._begin_once(parts)
        return b"".join([*parts, self.failure(error)])

    def _begin_once(self, parts: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            parts.append(self.beginning())

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

    def message_blocks(self) -> list[Block]:
        """Those of an answer that has ended, a call that was broken off as the text that it is."""
        blocks: list[Block] = []
        for index, part in enumerate(self.choice.message.parts):
            match part:
                case Text(text):
                    blocks.append(Block(index, "text", parts=[text]))
                case Reasoning(text):
                    blocks.append(Block(index, "reasoning", parts=[text]))
                case call:
                    blocks.append(Block(index, "call", call.name, call.id or "", [call.arguments], call.whole))
        if blocks and self.cut and blocks[-1].kind != "call":
            blocks[-1].whole = False
        return blocks

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
    def failure(self, error: Exception) -> bytes:
        """The last event of an answer that went wrong."""

    @abstractmethod
    def whole(self) -> bytes:
        """The answer as one JSON value."""
