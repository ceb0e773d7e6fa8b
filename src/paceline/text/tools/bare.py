"""Formats whose calls need no marker: `llama3_json` and `json`, and what `pythonic` shares with them.

    llama3_json    {"name": "f", "parameters": {"city": "Bern"}}; {"name": "g", "parameters": {}}
                   <|python_tag|>{"name": "f", "parameters": {"city": "Bern"}}
    json           {"name": "f", "arguments": {"city": "Bern"}}, or a list of such; also within ```json and ```, or
                   behind <|tool_call|> (Granite 3, Phi 4 mini) or <TOOLCALL> (Nemotron)

Without a marker (a fence is none) a call counts only where the answer begins with it, or right behind another call. It
must name a tool that was offered then, and have arguments: an answer may well be JSON with a member called name. Behind
a marker it counts anywhere, and so do those that follow, until what ends the marker's calls. Code behind
`<|python_tag|>` (the built-in interpreter) is text, with the tag.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from paceline.text.tools.events import ToolSpec
from paceline.text.tools.json_calls import JsonCallParser
from paceline.text.tools.reader import SPACE, CallParser, Steps

PYTHON_TAG = "<|python_tag|>"  # Llama 3
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"  # Llama 4
JSON_FENCE, FENCE_END = "```json", "```"
JSON_MARKERS = ("<|tool_call|>", "<|/tool_call|>", "<TOOLCALL>", "</TOOLCALL>")
_BETWEEN = re.compile(r"[;,\s]*")


class BareParser(CallParser):
    """Calls at the beginning, behind markers and behind calls."""

    MARKERS: ClassVar[Mapping[str, str]]  # what may stand before calls -> what stands behind them then
    FIRST: ClassVar[str]  # characters that calls without a marker begin with

    def __init__(self, tools: Sequence[ToolSpec] = ()) -> None:
        super().__init__(tools)
        self._marker = ""  # the one whose calls are read, as long as what ends them has not come

    def _read(self) -> Steps[None]:
        yield from self._more(SPACE)
        while marker := (yield from self._find(*self.MARKERS)):
            yield from self._literal(marker)
            if (yield from self._attempt(self._marked(marker))):
                yield from self._more(_BETWEEN)

    def _more(self, between: re.Pattern[str]) -> Steps[None]:
        """Calls that come next, with nothing but `between` before them. What stands there before other text is text."""
        while True:
            yield from self._run(between)
            marker = ""
            for each in self.MARKERS:
                if not marker and (yield from self._literal(each)):
                    marker = each
            first = yield from self._peek()
            if not marker and not (first and first in self.FIRST):
                self._back()
                return
            if not (yield from self._attempt(self._marked(marker or self._marker))):
                return
            between = _BETWEEN

    def _marked(self, marker: str) -> Steps[None]:
        """Behind a marker; "" where there was none."""
        yield from self._space()
        yield from self._body(marker)
        end = self.MARKERS.get(marker, "")
        self._marker = "" if end and (yield from self._swallow(end)) else marker

    @abstractmethod
    def _body(self, marker: str) -> Steps[None]:
        """Read calls; Malformed when there is none. `marker`: the one they stand behind, or ""."""


class Llama3Parser(BareParser, JsonCallParser):
    MARKERS: ClassVar[Mapping[str, str]] = {PYTHON_TAG: "", PYTHON_START: PYTHON_END}
    FIRST = "{["

    def _body(self, marker: str) -> Steps[None]:
        yield from self._calls(sure=bool(marker))


class JsonParser(BareParser, JsonCallParser):
    MARKERS: ClassVar[Mapping[str, str]] = {
        JSON_FENCE: FENCE_END,
        **dict(zip(JSON_MARKERS[::2], JSON_MARKERS[1::2], strict=True)),
    }
    FIRST = "{["

    def _body(self, marker: str) -> Steps[None]:
        yield from self._calls(sure=marker in JSON_MARKERS)
