"""`hermes` and `qwen3_coder`: calls between `<tool_call>` and `</tool_call>`.

    <tool_call>                                         <tool_call>
    {"name": "f", "arguments": {"city": "Bern"}}        <function=f>
    </tool_call>                                        <parameter=city>
                                                        Bern
    Hermes 2 and 3, Qwen 2.5 and 3, SmolLM2             </parameter>
                                                        </function>
                                                        </tool_call>           Qwen 3 Coder

One parser reads both forms. The JSON may be a list of calls. `<function=` counts without a `<tool_call>` before it, and
a missing `</tool_call>` does no harm. Any name is a call, also one that no tool has.

Parameters of the second form are text: what they mean is in the tool's schema. One that takes a string (or is not
described) is the text itself; any other is JSON, or a string where it is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from paceline.text.tools.exact_json import Digits, json_text, loads
from paceline.text.tools.json_calls import JsonCallParser
from paceline.text.tools.reader import Cut, Malformed, Steps, beginning_of

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MAX_UNIONS = 8  # within each other
_NAME = re.compile(r"[^<>\r\n]*")
_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
_IMPLIED = {  # by keywords that say something about one type only
    "properties": "object",
    "patternProperties": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
}
_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python writes them


class HermesParser(JsonCallParser):
    def _read(self) -> Steps[None]:
        while (yield from self._find(BEGIN, FUNCTION)):
            yield from self._attempt(self._block())

    def _block(self) -> Steps[None]:
        if (yield from self._literal(BEGIN)):
            yield from self._space()
        if (yield from self._peek()) == "<":
            yield from self._function()
        else:
            yield from self._calls(sure=True)
        yield from self._swallow(END)

    # --- the form with tags

    def _function(self) -> Steps[None]:
        yield from self._expect(FUNCTION)
        name = self._checked_name((yield from self._run(_NAME)), sure=True)
        yield from self._expect(">")
        self._start(name)
        self._write("{")
        try:
            separator = ""
            while (yield from self._tag()):
                key = yield from self._run(_NAME)
                yield from self._expect(">")
                self._write(f'{separator}"{json_text(key)}": ')
                whole = self.tools[name].parameters if name in self.tools else None
                yield from self._parameter(_schema_of(whole, key), whole)
                separator = ", "
        except Malformed as why:
            self._end("cut" if isinstance(why, Cut) else "broken")
            raise
        self._write("}")
        self._end("complete")

    def _tag(self) -> Steps[bool]:
        """Up to the name of the next parameter; False behind the function's end."""
        yield from self._space()
        yield from self._expect("<")
        if (yield from self._need()) == "/":
            yield from self._expect(FUNCTION_END[1:])
            return False
        yield from self._expect(PARAMETER[1:])
        return True

    def _parameter(self, schema: Any, whole: Any) -> Steps[None]:
        """Its value, without the line breaks that stand next to the tags. `whole`: what the schema is part of."""
        yield from self._literal("\n")
        types = set(_types_of(schema, whole, set()))
        if types <= {"string"}:
            self._write('"')
            yield from self._value(lambda text: self._write(json_text(text)))
            self._write('"')
        else:
            pieces: list[str] = []
            yield from self._value(pieces.append)
            self._write(_typed("".join(pieces), types))

    def _value(self, out: Any) -> Steps[None]:
        ends = ("\n" + PARAMETER_END, PARAMETER_END)
        while True:
            found = self._buffer.find(PARAMETER_END, self._at)
            if found >= 0:
                text, self._at = self._buffer[self._at : found], found + len(PARAMETER_END)
                out(text.removesuffix("\n"))
                return
            text = self._buffer[self._at :]
            text = text[: len(text) - beginning_of(text, ends)]
            if text:
                out(text)
            self._at += len(text)
            if not (yield from self._wait()):
                self._at = len(self._buffer)  # what may begin the closing tag is taken for it
                raise Cut


def _schema_of(parameters: Any, key: str) -> Any:
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return properties.get(key) if isinstance(properties, dict) else None


def _types_of(schema: Any, whole: Any, seen: set[str], depth: int = 0) -> Iterator[str]:
    """Types a schema allows, as far as it says so plainly; nothing when it does not. `whole`: where `$ref`s lead, each
    of which is followed once."""
    if not isinstance(schema, dict) or depth > MAX_UNIONS:
        return
    kind = schema.get("type")
    yield from (kind,) if isinstance(kind, str) else (each for each in _listed(kind) if isinstance(each, str))
    values = [schema["const"]] if "const" in schema else _listed(schema.get("enum"))
    for value in values if kind is None else ():
        yield from _TYPES.get(type(value), ("string",))
    for word, implied in _IMPLIED.items() if kind is None else ():
        if word in schema:
            yield implied
    for word in ("anyOf", "oneOf", "allOf"):
        for each in _listed(schema.get(word)):
            yield from _types_of(each, whole, seen, depth + 1)
    pointer = schema.get("$ref")
    if isinstance(pointer, str) and pointer not in seen:
        seen.add(pointer)
        known = list(_types_of(_referred(pointer, whole), whole, seen, depth + 1))
        yield from known or ("object", "array", "number", "boolean", "null")


def _referred(pointer: str, whole: Any) -> Any:
    """The part of `whole` that a `#/...` leads to; None where it leads elsewhere, or nowhere."""
    if not pointer.startswith("#"):
        return None
    part = whole
    for step in unquote(pointer[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        part = part.get(key) if isinstance(part, dict) else _item(part, key)
    return part


def _item(part: Any, key: str) -> Any:
    is_there = isinstance(part, list) and key.isascii() and key.isdecimal() and len(key) < 9 and int(key) < len(part)
    return part[int(key)] if is_there else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _typed(text: str, types: set[str]) -> str:
    """JSON text of a parameter that may be more than a string."""
    stripped = _WORDS.get(text.strip(), text.strip())
    try:
        value = loads(stripped)
    except ValueError:
        return f'"{json_text(text)}"'
    kind: type = type(value)
    if isinstance(value, Digits):
        kind = int if value.is_whole else float
    if "string" in types and types.isdisjoint(_TYPES.get(kind, ())):
        return f'"{json_text(text)}"'
    return stripped
