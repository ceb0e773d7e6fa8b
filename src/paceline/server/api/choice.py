"""One sequence of a call on its way to the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.contracts.request import FinishReason
from paceline.text.reading import Message, Piece
from paceline.text.tools import Text

if TYPE_CHECKING:
    from paceline.contracts.request import Request, RequestOutput, TokenLogprob
    from paceline.contracts.slo import Timeline
    from paceline.server.session import OutputStream
    from paceline.text import TextStream
    from paceline.text.reading import AnswerReader

CUT = (FinishReason.LENGTH, FinishReason.TIMEOUT)
"""Ends that neither the model nor a stop string meant."""


@dataclass
class News:
    """What came for one choice since the last time. `text` may lag behind `token_ids`; see text.pipeline."""

    text: str  # of the message: neither reasoning nor calls
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None  # the engine could not go on; `finish` is set too
    parsed: list[Piece] | None = None  # None: the answer is text alone
    called: bool = False  # the answer has a whole tool call; known with `finish`

    @property
    def pieces(self) -> list[Piece]:
        """Text, reasoning and tool calls, in the order they came."""
        if self.parsed is not None:
            return self.parsed
        return [Text(self.text)] if self.text else []


@dataclass(eq=False)
class Choice:
    """`index` is its place in the answer: prompts in order, the choices of each in order."""

    index: int
    request: Request
    text: TextStream
    output: OutputStream
    reader: AnswerReader | None = None  # tells the text apart; None: there is nothing to tell
    early: list[RequestOutput] = field(default_factory=list)  # taken from `output`, not yet by the reader
    last: RequestOutput | None = None  # the engine's last word
    done: bool = False  # and the reader has had it

    def take(self, outputs: Sequence[RequestOutput]) -> News:
        """Outputs as text."""
        news = News("", [], [])
        for output in outputs:
            delta = self.text.push(output)
            news.text += delta.text
            news.token_ids += delta.token_ids
            if delta.logprobs:
                news.logprobs += delta.logprobs
            if delta.prompt_logprobs is not None:
                news.prompt_logprobs = delta.prompt_logprobs
            if delta.finish is not None:
                self.done = True
                news.finish, news.stop_reason = delta.finish, delta.stop_reason
                if delta.finish in (FinishReason.ERROR, FinishReason.ABORT):
                    news.error = delta.error or "the server ended the request"
        if self.reader is not None:
            self._tell_apart(news, self.reader)
        return news

    def _tell_apart(self, news: News, reader: AnswerReader) -> None:
        news.parsed = reader.push(news.text, news.token_ids)
        if news.finish is not None:
            news.parsed += reader.finish(cut=news.finish in CUT)
            news.called = reader.called
        news.text = "".join([piece.text for piece in news.parsed if isinstance(piece, Text)])

    @property
    def message(self) -> Message:
        """The whole answer, once it has ended."""
        if self.reader is not None:
            return self.reader.message
        return Message([Text(self.text.text)] if self.text.text else [])

    @property
    def num_tokens(self) -> int:
        """Tokens the reader has had."""
        return len(self.text.token_ids)

    @property
    def reasoning_tokens(self) -> int | None:
        """Those of them that are reasoning; None where none is looked for."""
        return None if self.reader is None else self.reader.reasoning_tokens

    @property
    def timeline(self) -> Timeline | None:
        """Known once it has ended."""
        return None if self.last is None else self.last.timeline
