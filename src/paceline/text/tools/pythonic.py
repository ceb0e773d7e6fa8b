"""`pythonic`: calls as Python writes them, `[f(city="Bern", days=3), g()]`.

    [f(city="Bern"), g()]                               Llama 3.2 and 4: the whole answer, or its beginning
    <|python_start|>[f(city="Bern")]<|python_end|>      Llama 4; LFM2 with tool_call_start and tool_call_end
    ```tool_code                                        Gemma: a list, or calls by themselves
    f(city="Bern")
    ```

Arguments are literals (`python_literals`), `**{...}` for names that Python does not allow; deltas are JSON. An argument
without a name takes the name of the tool's property at its place. Anything else (expressions, variables) is no call,
and neither is a name that no tool has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from paceline.text.tools.bare import FENCE_END, PYTHON_END, PYTHON_START, BareParser
from paceline.text.tools.exact_json import json_text
from paceline.text.tools.python_literals import WORD, LiteralParser, constant
from paceline.text.tools.reader import Cut, Malformed, Steps
from paceline.text.tools.schemas import property_names

FENCE = "```tool_code"
MARKERS = (PYTHON_START, PYTHON_END, "<|tool_call_start|>", "<|tool_call_end|>")
_NAME = re.compile(r"[\w.\-]*")
_FUNCTION = re.compile(r"\w[\w.\-]{0,255}")
_BETWEEN = re.compile(r"[,;\s]*")


class PythonicParser(BareParser, LiteralParser):
    MARKERS: ClassVar[Mapping[str, str]] = {
        FENCE: FENCE_END,
        **dict(zip(MARKERS[::2], MARKERS[1::2], strict=True)),
    }
    FIRST = "["

    def _body(self, marker: str) -> Steps[None]:
        if marker == FENCE and (yield from self._need()) != "[":
            yield from self._call()
            while True:
                yield from self._run(_BETWEEN)
                if not _FUNCTION.match((yield from self._peek())):
                    break
                yield from self._call()
            self._back()
            return
        yield from self._expect("[")
        while True:
            yield from self._space()
            yield from self._call()
            yield from self._space()
            if (yield from self._literal(",")):
                yield from self._space()
                if (yield from self._peek()) != "]":
                    continue
            if (yield from self._literal("]")):
                self._drop()
            self._back()
            return

    def _call(self) -> Steps[None]:
        name = yield from self._run(_NAME)
        if not _FUNCTION.fullmatch(name) or (self.tools and name not in self.tools):
            raise Malformed
        yield from self._expect("(")
        try:
            yield from self._argument_list(name)
        except Malformed as why:
            if self._is_open:
                self._end("cut" if isinstance(why, Cut) else "broken")
            raise
        self._end("complete")

    def _argument_list(self, name: str) -> Steps[None]:
        """Up to the closing parenthesis. The call starts when the first argument shows that it is one. No name may come
        twice, and behind an argument with a name each has one."""
        names = set[str]()
        is_named = False
        while True:
            yield from self._space()
            if (yield from self._need()) == ")":
                if not self._is_open:
                    self._start(name)
                    self._write("{")
                self._at += 1
                self._write("}")
                return
            if (yield from self._literal("*")):
                yield from self._expect("*")
                yield from self._space()
                if (yield from self._need()) != "{":
                    raise Malformed
                self._open(name)
                is_named = True
                yield from self._dict(self._write, 1, names)
            else:
                is_named = yield from self._argument(name, names, is_named=is_named)
            yield from self._space()
            if (yield from self._need()) == ",":
                self._at += 1
            elif self._buffer[self._at] != ")":
                raise Malformed

    def _argument(self, name: str, names: set[str], *, is_named: bool) -> Steps[bool]:
        """One argument; its name is new, and added to `names`. Was it written with one, as `is_named` says it must?"""
        word = ""
        if (yield from self._need()) not in "\"'[({":
            word = yield from self._run(WORD)
            if not word:
                raise Malformed
            yield from self._space()
            yield from self._need()
        separator = ", " if names else ""
        if word and (yield from self._literal("=")):
            if not word.isidentifier() or word in names:
                raise Malformed
            names.add(word)
            yield from self._space()
            yield from self._need()
            self._open(name)
            self._write(f'{separator}"{json_text(word)}": ')
            yield from self._value(self._write, 0)
            return True
        if is_named:
            raise Malformed
        key = self._property_at(name, len(names))
        names.add(key)
        value = constant(word) if word else ""
        self._open(name)
        self._write(f'{separator}"{json_text(key)}": {value}')
        if not word:
            yield from self._value(self._write, 0)
        return False

    def _open(self, name: str) -> None:
        if not self._is_open:
            self._start(name)
            self._write("{")

    def _property_at(self, name: str, place: int) -> str:
        names = property_names(self.tools[name].parameters if name in self.tools else None)
        if place >= len(names):
            raise Malformed
        return names[place]
