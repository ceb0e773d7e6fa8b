"""Python's literals while they come, written as JSON.

Strings of every quotation with their escapes (line breaks may stand raw in any of them), numbers, True, False and None
(also as JSON writes them), lists, tuples (lists in JSON), dicts whose keys are strings. Nothing is evaluated:
f-strings, bytes, sets, expressions and names are not read. Numbers keep their digits where JSON can write them so.
"""

from __future__ import annotations

import json
import re
import unicodedata

from paceline.text.tools.exact_json import NUMBER, json_text
from paceline.text.tools.reader import MAX_DEPTH, CallParser, Malformed, Out, Steps

MAX_BASED_CHARS = 1000  # of a number with a base: writing it out in tens takes the square of that
WORD = re.compile(r"[-+.\w]*")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}
_ESCAPES |= {each: each for each in "\\\"'/"}  # \/ as JSON has it
_OCTAL = "01234567"
_UNICODE_NAME = re.compile(r"[\w\- ]*")
_NUM_HEX = {"x": 2, "u": 4, "U": 8}
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_WRITTEN = re.compile(r"([-+]?)(0+|[1-9][0-9]*)?(?:\.([0-9]*))?([eE][-+]?[0-9]+)?", re.ASCII)
_UNDERSCORE = re.compile(r"(?<=[0-9])_(?=[0-9])", re.ASCII)
_BASED = re.compile(r"[-+]?0(?:[xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")


class LiteralParser(CallParser):
    """Reads literals. Raises Malformed where the text is none, Cut where it ends."""

    def _value(self, out: Out, depth: int) -> Steps[None]:
        if depth > MAX_DEPTH:
            raise Malformed
        character = yield from self._need()
        if character in "\"'":
            yield from self._string(out)
        elif character == "[":
            yield from self._list(out, depth + 1)
        elif character == "(":
            yield from self._parentheses(out, depth + 1)
        elif character == "{":
            out("{")
            yield from self._dict(out, depth + 1)
            out("}")
        else:
            word = yield from self._run(WORD)
            yield from self._need()  # a number at the end of the text may lack its last digits
            out(constant(word))

    def _list(self, out: Out, depth: int) -> Steps[None]:
        yield from self._expect("[")
        out("[")
        separator = ""
        while True:
            yield from self._space()
            if (yield from self._literal("]")):
                out("]")
                return
            out(separator)
            yield from self._value(out, depth)
            yield from self._comma("]")
            separator = ", "

    def _parentheses(self, out: Out, depth: int) -> Steps[None]:
        """A tuple, or a value in parentheses; which, shows behind the first value."""
        yield from self._expect("(")
        pieces: list[str] = []
        is_tuple = False
        while True:
            yield from self._space()
            if (yield from self._literal(")")):
                break
            pieces.append(", " if pieces else "")
            yield from self._value(pieces.append, depth)
            is_tuple |= yield from self._comma(")")
        text = "".join(pieces)
        out(text if text and not is_tuple else f"[{text}]")

    def _dict(self, out: Out, depth: int, names: set[str] | None = None) -> Steps[None]:
        """The members, without braces. With `names` they follow others: none of these may come again, and the new ones
        are added."""
        yield from self._expect("{")
        separator = ", " if names else ""
        while True:
            yield from self._space()
            if (yield from self._literal("}")):
                return
            if (yield from self._need()) not in "\"'":
                raise Malformed
            if names is None:
                out(separator)
                yield from self._string(out)
            else:
                key = yield from self._new_name(names)
                out(separator + key)
            separator = ", "
            yield from self._space()
            yield from self._expect(":")
            yield from self._space()
            out(": ")
            yield from self._value(out, depth)
            yield from self._comma("}")

    def _new_name(self, names: set[str]) -> Steps[str]:
        """A string that is none of `names` and is added to them, as JSON."""
        pieces: list[str] = []
        yield from self._string(pieces.append)
        text = "".join(pieces)
        name = json.loads(text)  # not all pieces may write it in the same way
        if name in names:
            raise Malformed
        names.add(name)
        return text

    def _comma(self, end: str) -> Steps[bool]:
        """A comma, or `end` stands here (unread)."""
        yield from self._space()
        if (yield from self._need()) == end:
            return False
        yield from self._expect(",")
        return True

    def _string(self, out: Out) -> Steps[None]:
        """In one or three quotation marks."""
        quote = yield from self._need()
        self._at += 1
        long = False
        if (yield from self._literal(quote)):
            if not (yield from self._literal(quote)):
                out('""')
                return
            long = True
        out('"')
        num_quotes = 0  # that stand here in a row
        while True:
            character = yield from self._need()
            if character == quote:
                self._at += 1
                num_quotes += 1
                if num_quotes == (3 if long else 1):
                    out('"')
                    return
                continue
            out(json_text(quote * num_quotes))
            num_quotes = 0
            if character == "\\":
                yield from self._escape(out)
            else:
                yield from self._run(_PLAIN[quote], lambda text: out(json_text(text)))

    def _escape(self, out: Out) -> Steps[None]:
        """What Python makes of a backslash; before a character that means nothing, it stays."""
        self._at += 1
        character = yield from self._need()
        self._at += 1
        if character in _ESCAPES:
            out(json_text(_ESCAPES[character]))
        elif character in _NUM_HEX:
            digits = ""
            while len(digits) < _NUM_HEX[character]:
                digits += yield from self._one_of("0123456789abcdefABCDEF")
            if int(digits, 16) > 0x10FFFF:
                raise Malformed
            out(json_text(chr(int(digits, 16))))
        elif character in _OCTAL:
            while len(character) < 3 and (digit := (yield from self._need())) in _OCTAL:
                self._at += 1
                character += digit
            out(json_text(chr(int(character, 8))))
        elif character == "N":
            yield from self._expect("{")
            name = yield from self._run(_UNICODE_NAME)
            yield from self._expect("}")
            try:
                out(json_text(unicodedata.lookup(name)))
            except KeyError:
                raise Malformed from None
        else:
            out(json_text("\\" + character))

    def _one_of(self, characters: str) -> Steps[str]:
        character = yield from self._need()
        if character not in characters:
            raise Malformed
        self._at += 1
        return character


def constant(word: str) -> str:
    """JSON for a number or a word of Python's. Raises Malformed for any other."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if NUMBER.fullmatch(word):
        return word
    if len(word) <= MAX_BASED_CHARS and _BASED.fullmatch(word):
        return str(int(word, 0))
    found = _WRITTEN.fullmatch(_UNDERSCORE.sub("", word))
    if found is None or not (found[2] or found[3]):
        raise Malformed
    whole = (found[2] or "").lstrip("0") or "0"
    fraction = "" if found[3] is None else "." + (found[3] or "0")
    return found[1].strip("+") + whole + fraction + (found[4] or "")
