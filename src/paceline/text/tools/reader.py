"""The base of all parsers: reads text that comes in portions as if it were all there.

A parser is written as a generator that reads forward character by character. Where the text ends, it yields, and goes
on when more came. So a parser decides by the text alone, never by how it was cut: every split gives the same events.

What was read and is not certain yet stays in the buffer. When it turns out to be no call, the cursor goes back and the
same characters are read again as text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from paceline.text.tools.events import ArgumentsDelta, CallEnded, CallStarted, Event, Outcome, Text, ToolSpec

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
Out: TypeAlias = Callable[[str], object]

MAX_DEPTH = 128  # objects and lists within each other
SPACE = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):  # noqa: N818 - a turn of the parse, never seen outside
    """What was read is no call of this format."""


class Cut(Malformed):
    """The answer ended before it was whole."""


class CallParser(ABC):
    """Implements `ToolParser`; a format overrides `_read`, which ends at the end of the answer.

    `tools`: those offered. Where a format has no marker, only text that names one of them is a call (any name will do
    when none are given).
    """

    def __init__(self, tools: Sequence[ToolSpec] = ()) -> None:
        self.tools = {tool.name: tool for tool in tools}
        # Characters of the buffer before `_begin` are done with: given out as text, or part of a call. They leave it
        # when the text ends, all at once: one by one they would cost the square of their number.
        self._buffer = ""
        self._begin = 0
        self._at = 0  # the next character to read
        self._ended = False
        self._events: list[Event] = []
        self._texts: list[str] = []  # text that comes behind these events
        self._num_calls = 0
        self._is_open = False  # a call has started and not ended
        self._is_whole = False  # the open call has its arguments: what is read behind them may be no part of it
        self._arguments: list[str] = []  # of the open call, not given out yet
        self._raw: list[str] = []  # of the open call, what is done with
        self._steps = self._read()

    def feed(self, text: str) -> list[Event]:
        """Events that became certain with `text`."""
        assert not self._ended, "text after the end"
        self._buffer += text
        next(self._steps)
        return self._take_events()

    def finish(self) -> list[Event]:
        """The rest, when no more text comes."""
        self._ended = True
        for _ in self._steps:
            raise AssertionError("a parser waits for text after the end")
        assert self._begin == len(self._buffer)
        return self._take_events()

    @abstractmethod
    def _read(self) -> Steps[None]:
        """The whole answer, to its end."""

    # --- reading

    def _wait(self) -> Steps[bool]:
        """Until there is more text; False at the end."""
        if self._ended:
            return False
        self._flush()
        if self._is_open and not self._is_whole:  # never taken back
            self._keep()
        self._buffer, self._at, self._begin = self._buffer[self._begin :], self._at - self._begin, 0
        size = len(self._buffer)
        while len(self._buffer) == size and not self._ended:
            yield
        return len(self._buffer) > size

    def _peek(self) -> Steps[str]:
        """The next character; "" at the end."""
        while self._at >= len(self._buffer):
            if not (yield from self._wait()):
                return ""
        return self._buffer[self._at]

    def _need(self) -> Steps[str]:
        """The next character. Raises Cut at the end."""
        character = yield from self._peek()
        if not character:
            raise Cut
        return character

    def _expect(self, text: str) -> Steps[None]:
        """Read `text`. Raises Malformed at the first character that differs."""
        for wanted in text:
            if (yield from self._need()) != wanted:
                raise Malformed
            self._at += 1

    def _literal(self, text: str) -> Steps[bool]:
        """Read `text` if it comes; else the cursor stays."""
        assert not self._is_open or self._is_whole or len(text) == 1, "what an open call has read is gone"
        for count, wanted in enumerate(text):
            if (yield from self._peek()) != wanted:
                self._at -= count
                return False
            self._at += 1
        return True

    def _run(self, pattern: re.Pattern[str], out: Out | None = None) -> Steps[str]:
        """Read the longest run that `pattern` (a repeated class of characters) matches, up to the end at most."""
        pieces: list[str] = []
        while True:
            found = pattern.match(self._buffer, self._at)
            assert found is not None
            piece = found.group()
            self._at = found.end()
            if piece:
                pieces.append(piece)
                if out is not None:
                    out(piece)
            if self._at < len(self._buffer) or not (yield from self._wait()):
                return "".join(pieces)

    def _space(self, out: Out | None = None) -> Steps[None]:
        yield from self._run(SPACE, out)

    def _back(self) -> None:
        """Read again what was read and is not certain."""
        self._at = self._begin

    # --- text outside of calls

    def _find(self, *markers: str) -> Steps[str]:
        """Give out text up to the first marker, and stand at it; "" when the answer ends without one. Only the end of
        the text that may be the beginning of a marker is held back."""
        assert not self._is_open
        self._back()
        anywhere = re.compile("|".join(map(re.escape, markers)))
        while True:
            found = anywhere.search(self._buffer, self._begin)
            if found is not None:
                self._let_go(found.start())
                return found.group()
            self._let_go(len(self._buffer) - beginning_of(self._buffer[self._begin :], markers))
            if not (yield from self._wait()):
                self._let_go(len(self._buffer))
                return ""

    def _let_go(self, end: int) -> None:
        """What comes before `end`, a place in the buffer, is text."""
        assert self._begin <= end <= len(self._buffer)
        self._texts.append(self._buffer[self._begin : end])
        self._begin = self._at = end

    def _drop(self) -> None:
        """What was read is a marker: it shows nowhere."""
        self._begin = self._at

    def _swallow(self, marker: str) -> Steps[bool]:
        """Drop `marker`, and white space before it, if they come."""
        yield from self._space()
        if (yield from self._literal(marker)):
            self._drop()
            return True
        self._back()
        return False

    def _attempt(self, steps: Steps[None]) -> Steps[bool]:
        """Read calls with `steps`. When that fails before the first call began, the first character that was read is
        text, so that the same place is not tried again."""
        num_before = self._num_calls
        try:
            yield from steps
        except Malformed:
            assert not self._is_open
            self._back()
            if self._num_calls == num_before:
                self._let_go(self._begin + 1)
            return False
        return True

    # --- calls

    def _start(self, name: str) -> None:
        assert not self._is_open
        self._is_open = True
        self._say(CallStarted(self._num_calls, name))

    def _write(self, text: str) -> None:
        """The next piece of the open call's arguments."""
        self._arguments.append(text)

    def _keep(self) -> None:
        """What was read is part of the open call."""
        self._raw.append(self._buffer[self._begin : self._at])
        self._begin = self._at

    def _end(self, outcome: Outcome) -> None:
        self._flush()
        self._keep()
        self._say(CallEnded(self._num_calls, outcome, "".join(self._raw)))
        self._raw.clear()
        self._is_open = self._is_whole = False
        self._num_calls += 1

    def _flush(self) -> None:
        text = "".join(self._arguments)
        self._arguments.clear()
        if text:
            self._say(ArgumentsDelta(self._num_calls, text))

    # --- events

    def _say(self, event: Event) -> None:
        self._say_text()
        self._events.append(event)

    def _say_text(self) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        if text:
            self._events.append(Text(text))

    def _take_events(self) -> list[Event]:
        self._say_text()
        events, self._events = self._events, []
        return events


def beginning_of(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of `markers` and is not all of it."""
    longest = 0
    for marker in markers:
        for size in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:size]):
                longest = size
                break
    return longest
