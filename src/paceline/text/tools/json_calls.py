"""JSON while it comes: any value, and objects that are calls.

A call is an object with `name`, a string, and `arguments` or `parameters`, an object, in any order; other members are
read and left out; where no marker stands before it, an object with any but `type` and `id` is no call. Deltas are the
arguments as written, white space and digits of numbers included, with one repair: control characters that stand raw in
a string, which JSON forbids and models write, are escaped.
"""

from __future__ import annotations

import json
import re
from typing import ClassVar

from paceline.text.tools.exact_json import NUMBER
from paceline.text.tools.reader import MAX_DEPTH, CallParser, Cut, Malformed, Out, Steps

MAX_NAME_CHARS = 256
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSING = {"{": "}", "[": "]"}


class JsonCallParser(CallParser):
    """What formats with calls in JSON share."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    OTHERS: ClassVar[tuple[str, ...]] = ("name", "type", "id", *ARGUMENTS)  # an object with others is none, if not sure

    def _calls(self, *, sure: bool) -> Steps[None]:
        """One call, or a list of calls. Raises Malformed before the first call that is none; what is behind a list that
        goes wrong after a call stays in the buffer. `sure`: a marker said that calls come."""
        if (yield from self._need()) != "[":
            yield from self._call(sure=sure)
            return
        self._at += 1
        while True:
            yield from self._space()
            yield from self._call(sure=sure)
            yield from self._space()
            if not (yield from self._literal(",")):
                break
        if (yield from self._literal("]")):
            self._drop()
        else:
            self._back()

    def _call(self, *, sure: bool) -> Steps[None]:
        """An object that is a call. Raises Malformed when it is none, or breaks off within its arguments. A call whose
        arguments are whole counts, also when the object does not close: it ends behind them then, and what follows is
        text."""
        name, held, whole = "", list[str](), False
        try:
            yield from self._expect("{")
            first = True
            while (yield from self._member(first=first)):
                first = False
                key = yield from self._json_string()
                yield from self._space()
                yield from self._expect(":")
                yield from self._space()
                if key == "name" and not name:
                    name = self._checked_name((yield from self._json_string()), sure=sure)
                    if whole:
                        self._start_with(name, held)
                elif key in self.ARGUMENTS and not whole:
                    if (yield from self._need()) == "n":
                        yield from self._expect("null")
                        held.append("{}")
                    elif self._buffer[self._at] != "{":
                        raise Malformed
                    elif name:
                        self._start(name)
                        yield from self._json_value(self._write)
                    else:
                        yield from self._json_value(held.append)
                    if name and held:
                        self._start_with(name, held)
                    whole = True
                elif sure or self._is_open or key in self.OTHERS:
                    yield from self._json_value(_ignore)
                else:
                    raise Malformed
                if whole and self._is_open and not self._is_whole:
                    self._keep()
                    self._is_whole = True
            if name and not whole and sure:  # a call without arguments
                self._start_with(name, ["{}"])
                whole = True
            if not self._is_open:
                raise Malformed
        except Malformed as why:
            if isinstance(why, Cut) and sure and name and not self._is_open:
                self._start_with(name, held)
            if not self._is_open:
                raise
            if not whole:
                self._end("cut" if isinstance(why, Cut) else "broken")
                raise
            self._back()
        self._end("complete")

    def _named(self, name: str) -> Steps[None]:
        """The arguments of a call whose name was written before them."""
        try:
            if (yield from self._need()) != "{":
                raise Malformed
            self._start(name)
            yield from self._json_value(self._write)
        except Malformed as why:
            if isinstance(why, Cut) and not self._is_open:
                self._start(name)
            if not self._is_open:
                raise
            self._end("cut" if isinstance(why, Cut) else "broken")
            raise
        self._end("complete")

    def _start_with(self, name: str, arguments: list[str]) -> None:
        self._start(name)
        for piece in arguments:
            self._write(piece)

    def _checked_name(self, name: str, *, sure: bool) -> str:
        if not 0 < len(name) <= MAX_NAME_CHARS or (not sure and self.tools and name not in self.tools):
            raise Malformed
        try:
            name.encode()
        except UnicodeEncodeError:
            raise Malformed from None
        return name

    # --- JSON. Raises Malformed where the text is none, Cut where it ends

    def _member(self, *, first: bool) -> Steps[bool]:
        """Up to the next key of an object; False behind its end."""
        yield from self._space()
        character = yield from self._need()
        if character == "}":
            self._at += 1
            return False
        if not first:
            yield from self._expect(",")
            yield from self._space()
        return True

    def _json_string(self) -> Steps[str]:
        pieces: list[str] = []
        yield from self._string(pieces.append)
        value = json.loads("".join(pieces))
        assert isinstance(value, str)
        return value

    def _json_value(self, out: Out) -> Steps[None]:
        """One value, passed to `out` in pieces while it comes; numbers and words whole."""
        open_ends: list[str] = []  # what must close, innermost last
        while True:
            character = yield from self._need()
            if character in _CLOSING:
                self._read_one(character, out)
                open_ends.append(_CLOSING[character])
                if len(open_ends) > MAX_DEPTH:
                    raise Malformed
                yield from self._space(out)
                if (yield from self._need()) != open_ends[-1]:
                    if character == "{":
                        yield from self._key(out)
                    continue
            elif character == '"':
                yield from self._string(out)
            else:
                word = yield from self._run(_WORD)
                yield from self._need()  # a number at the end of the text may lack its last digits
                if word not in ("true", "false", "null") and not NUMBER.fullmatch(word):
                    raise Malformed
                out(word)
            while open_ends:
                yield from self._space(out)
                character = yield from self._need()
                if character == open_ends[-1]:
                    open_ends.pop()
                    self._read_one(character, out)
                elif character == ",":
                    self._read_one(character, out)
                    yield from self._space(out)
                    if open_ends[-1] == "}":
                        yield from self._key(out)
                    break
                else:
                    raise Malformed
            else:
                return

    def _key(self, out: Out) -> Steps[None]:
        yield from self._string(out)
        yield from self._space(out)
        yield from self._expect(":")
        out(":")
        yield from self._space(out)

    def _string(self, out: Out) -> Steps[None]:
        yield from self._expect('"')
        out('"')
        while True:
            yield from self._run(_PLAIN, out)
            character = yield from self._need()
            if character == "\\":
                yield from self._escape(out)
                continue
            self._at += 1
            if character == '"':
                out('"')
                return
            out(json.dumps(character)[1:-1])  # a control character

    def _escape(self, out: Out) -> Steps[None]:
        self._at += 1
        character = yield from self._need()
        self._at += 1
        if character in '"\\/bfnrt':
            out("\\" + character)
            return
        if character != "u":
            raise Malformed
        digits = ""
        for _ in range(4):
            digit = yield from self._need()
            if digit not in _HEX:
                raise Malformed
            self._at += 1
            digits += digit
        out("\\u" + digits)

    def _read_one(self, character: str, out: Out) -> None:
        self._at += 1
        out(character)


def _ignore(_: str) -> None:
    pass
