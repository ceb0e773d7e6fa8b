"""Grammars under which an answer is calls of the tools offered, in a format's own words, arguments by their schemas.

What stands around the arguments is written as `serialise` writes it, so a model meets what its template showed it.
Arguments are `%json` of llguidance, one space behind `,` and `:`. In `pythonic`, each value is JSON by its own schema,
which the parser reads as well as Python's words; a tool whose schema says more than which properties there are, or
whose names Python does not allow, has its arguments in `**{...}`. `qwen3_coder` is enforced in the JSON form of
`hermes`, which its parser reads too: tags cannot hold every string.

Schemas are narrowed where that loses no sense (`schemas.narrowed`). All that is written satisfies the schema as it was
given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import RequestError
from paceline.text.grammar.spec import GrammarSpec
from paceline.text.tools import hermes, mistral
from paceline.text.tools.events import ToolSpec
from paceline.text.tools.formats import get_format
from paceline.text.tools.json_calls import MAX_NAME_CHARS
from paceline.text.tools.schemas import Bounds, arguments_schema, keyword_schemas

if TYPE_CHECKING:
    from paceline.text.reasoning import ReasoningFormat

MAX_PARALLEL_CALLS = 16  # a small model that may write calls and nothing else does not stop by itself
_BARE_NAME = re.compile(r"\w[\w.\-]*")
_WRITES_NAMES_BARE = ("pythonic", "mistral_args")


def call_grammar(
    format: str,
    tools: Sequence[ToolSpec],
    choice: str | None = None,
    *,
    parallel: bool = True,
    max_calls: int = MAX_PARALLEL_CALLS,
    special_ids: Mapping[str, int] | None = None,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
    bounds: Bounds | None = None,
) -> GrammarSpec:
    """An answer that is one call, or with `parallel` up to `max_calls`, of any of `tools`, or of the one that
    `choice` names (None: any).

    `special_ids`: id by text of the vocabulary's special tokens; markers among them are written by that id, as text
    they could not be. `reasoning`: it may stand before the calls; `inside`: the prompt has opened it, so it ends first.
    `bounds`: for strings and lists that have none; without, they may go on to the end of the answer.

    Raises ConfigError for an unknown format; RequestError for a choice that is no tool, for a name that the format's
    parser would not read, and for a schema that is not of an object. Whether a schema can be enforced shows when the
    grammar is compiled: what cannot is left out, but refused for a tool that is `strict`.
    """
    name = get_format(format).name
    chosen = [(index, tool) for index, tool in enumerate(tools) if choice in (None, tool.name)]
    if not chosen:
        known = ", ".join(tool.name for tool in tools)
        raise RequestError(
            "tool_choice names no tool of the request" if tools else "tool_choice needs tools",
            param="tool_choice",
            seen="required" if choice is None else f"{choice!r:.80}",
            expected=f"one of {known}"[:400] if known else "tools",
        )
    rules = _Rules(special_ids or {})
    answer = _answer(rules, name, max_calls if parallel else 1)
    rules.add("start", f"{_thought(rules, reasoning, inside)} {answer}" if reasoning else answer)
    rules.add("call", " | ".join(_call(rules, name, index, tool, bounds) for index, tool in chosen))
    return GrammarSpec(kind="lark", value=rules.text())


_RULE_OF_TOOL = re.compile(r"(?:arguments|value)(\d+)")


def tool_lines(spec: GrammarSpec) -> list[int | None]:
    """For each line of a `call_grammar`: the place of the tool whose schema stands there, or None."""
    found = [_RULE_OF_TOOL.match(line) for line in spec.value.split("\n")]
    return [None if one is None else int(one[1]) for one in found]


class _Rules:
    """Rules of a Lark grammar."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._special_ids = special_ids
        self._lines: list[str] = []

    def add(self, name: str, body: str) -> str:
        self._lines.append(f"{name}: {body}")
        return name

    def add_json(self, name: str, schema: Mapping[str, Any], *, strict: bool) -> str:
        options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": not strict}
        return self.add(name, "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False))

    def is_special(self, marker: str) -> bool:
        return marker in self._special_ids

    def marker(self, text: str) -> str:
        """A text that may be a special token."""
        index = self._special_ids.get(text)
        return quoted(text) if index is None else f"<[{index}]>"

    def text(self) -> str:
        return "\n".join(self._lines)


def quoted(text: str) -> str:
    """A JSON string is a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def _answer(rules: _Rules, format: str, most: int) -> str:
    """The body of `start`: how calls stand in an answer, `most` at most. What a call is, `call` says."""

    def several(one: str, between: str) -> str:
        return one if most == 1 else f"{one} ({quoted(between)} {one}){{0,{most - 1}}}"

    if format in ("hermes", "qwen3_coder"):
        begin, end = rules.marker(hermes.BEGIN), rules.marker(hermes.END)
        block = f"{begin} {quoted(chr(10) + _OBJECT)} call {quoted('}' + chr(10))} {end}"
        return several(rules.add("block", block), "\n")
    if format == "mistral_args":
        block = rules.add("block", f"{rules.marker(mistral.BEGIN)} call")
        return f"{block}{{1,{most}}}"
    if format == "pythonic":
        return f"{quoted('[')} {several('call', ', ')} {quoted(']')}"
    one = rules.add("object", f"{quoted(_OBJECT)} call {quoted('}')}")
    if format == "llama3_json":
        return several(one, "; ")
    listed = f"{quoted('[')} {several(one, ', ')} {quoted(']')}"
    if format == "mistral":
        return f"{rules.marker(mistral.BEGIN)} {listed}"
    assert format == "json"
    return one if most == 1 else f"({one} | {listed})"


_OBJECT = '{"name": '


def _call(rules: _Rules, format: str, index: int, tool: ToolSpec, bounds: Bounds | None) -> str:
    """One call of a tool: an alternative of `call`, from its name to the end of its arguments."""
    if not 0 < len(tool.name) <= MAX_NAME_CHARS:
        raise RequestError(
            "a tool of this name could not be called: a call with it is read as text",
            param=f"tools[{index}].function.name",
            seen=f"{len(tool.name)} characters",
            expected=f"1 to {MAX_NAME_CHARS} characters",
        )
    if format in _WRITES_NAMES_BARE and not _BARE_NAME.fullmatch(tool.name):
        raise RequestError(
            "this model writes names of tools without quotation marks, and this one cannot be written so",
            param=f"tools[{index}].function.name",
            seen=f"{tool.name!r:.80}",
            expected="letters, digits, _, - and dots",
        )
    schema = arguments_schema(tool, index, bounds)
    if format == "pythonic":
        return _python_call(rules, index, tool, schema)
    arguments = rules.add_json(f"arguments{index}", schema, strict=tool.strict)
    if format == "mistral_args":
        return f"{quoted(tool.name)} {rules.marker(mistral.ARGS)} {arguments}"
    key = "parameters" if format == "llama3_json" else "arguments"
    return f"{quoted(f'{quoted(tool.name)}, {quoted(key)}: ')} {arguments}"


def _python_call(rules: _Rules, index: int, tool: ToolSpec, schema: dict[str, Any]) -> str:
    """Properties in the order of the schema, those that are not required or not. `first*` is what may follow when none
    has come yet, `next*` when one has."""
    schemas = keyword_schemas(schema)
    if schemas is None:
        arguments = rules.add_json(f"arguments{index}", schema, strict=tool.strict)
        return f"{quoted(tool.name + '(**')} {arguments} {quoted(')')}"
    required = schema.get("required", ())
    following, beginning = rules.add(f"next{index}x", '""'), rules.add(f"first{index}x", '""')
    for place, (key, each) in reversed(list(enumerate(schemas.items()))):
        value = f"value{index}x{place}"
        if each.keys() - {"title", "description", "default"} == {"type"} and each["type"] == "boolean":
            rules.add(value, '"True" | "False"')
        else:
            rules.add_json(value, each, strict=tool.strict)
        one = rules.add(f"keyword{index}x{place}", f"{quoted(key + '=')} {value}")
        may_miss = key not in required
        beginning = rules.add(f"first{index}x{place}", f"{one} {following}" + (f" | {beginning}" if may_miss else ""))
        following = rules.add(
            f"next{index}x{place}", f"{quoted(', ')} {one} {following}" + (f" | {following}" if may_miss else "")
        )
    return f"{quoted(tool.name + '(')} {beginning} {quoted(')')}"


def _thought(rules: _Rules, reasoning: ReasoningFormat, inside: bool) -> str:
    """Reasoning that may come before (or, where it is open, must end)."""
    if rules.is_special(reasoning.end):
        rules.add("thought", f"/(?s:.*)/ {rules.marker(reasoning.end)} space")
    else:
        rules.add(f"thought_text[suffix={quoted(reasoning.end)}]", "/(?s:.*)/")
        rules.add("thought", "thought_text space")
    rules.add("space", r"/\s{0,4}/")
    return "thought" if inside else f"({rules.marker(reasoning.begin)} thought)?"
