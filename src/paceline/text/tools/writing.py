"""Calls as each format writes them: for prompts of models whose template knows no tools, and the way back for tests.

Arguments are written as they are where the format has JSON. `pythonic` and `qwen3_coder` have them in another form:
names and values stay, digits of numbers too; white space does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paceline.errors import RequestError
from paceline.text.tools.events import ToolCall, ToolSpec
from paceline.text.tools.exact_json import Digits, json_text, loads, nests_within
from paceline.text.tools.formats import get_format
from paceline.text.tools.reader import MAX_DEPTH
from paceline.text.tools.schemas import is_keyword_name


def serialise(format: str, calls: Sequence[ToolCall]) -> str:
    """The text of an assistant's message with `calls`, without what may stand around it. Raises ConfigError for an
    unknown format, RequestError (param `tool_calls`) for arguments that are no JSON object."""
    name = get_format(format).name
    for call in calls:
        arguments_of(call)
    return _WRITERS[name](calls) if calls else ""


def system_block(format: str, tools: Sequence[ToolSpec]) -> str:
    """Says which tools there are and how to call them: for the system message of a model whose template does not."""
    example = ToolCall("TOOL_NAME", '{"ARGUMENT_NAME": "value"}')
    lines = [_described(tool) for tool in tools]
    return "\n".join(
        [
            "You can call tools. Each line describes one, its arguments as a JSON schema:",
            "",
            *lines,
            "",
            "To call one, write this and nothing else, with the tool's name and your arguments in place:",
            "",
            serialise(format, [example]),
            "",
            "To call two at once:",
            "",
            serialise(format, [example, example]),
            "",
            "The results come in the next message. If no tool helps, answer without one.",
        ]
    )


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments, numbers as `Digits`. Raises RequestError when they are no JSON object, or one that no parser
    would read: it nests too deep."""
    try:
        value = loads(call.arguments)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RequestError(
            "arguments of a tool call must be JSON text of an object",
            param="tool_calls",
            seen=f"{call.arguments[:80]!r} for {call.name!r:.80}",
            expected='{"name": value, ...}',
        )
    if not nests_within(value, MAX_DEPTH):
        raise RequestError(
            "arguments of a tool call nest too deep",
            param="tool_calls",
            seen=f"{call.arguments[:80]!r} for {call.name!r:.80}",
            expected=f"at most {MAX_DEPTH} lists or objects within each other",
        )
    return value


def _described(tool: ToolSpec) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {}}
    return json.dumps({key: value for key, value in function.items() if value}, ensure_ascii=False)


def _object(call: ToolCall, key: str = "arguments") -> str:
    return f'{{"name": {_quoted(call.name)}, "{key}": {call.arguments.strip()}}}'


def _objects(calls: Iterable[ToolCall]) -> str:
    return "[" + ", ".join(_object(call) for call in calls) + "]"


def _quoted(text: str) -> str:
    return f'"{json_text(text)}"'


def _hermes(calls: Sequence[ToolCall]) -> str:
    return "\n".join(f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls)


def _qwen3_coder(calls: Sequence[ToolCall]) -> str:
    blocks = []
    for call in calls:
        lines = [f"<tool_call>\n<function={call.name}>"]
        for key, value in arguments_of(call).items():
            # in JSON only a string can hold the end of the tag, and there it can be escaped
            text = value if type(value) is str else _literal(value, _JSON).replace("</parameter>", "\\u003c/parameter>")
            lines.append(f"<parameter={key}>\n{text}\n</parameter>")
        blocks.append("\n".join([*lines, "</function>\n</tool_call>"]))
    return "\n".join(blocks)


def _llama3_json(calls: Sequence[ToolCall]) -> str:
    return "; ".join(_object(call, "parameters") for call in calls)


def _mistral(calls: Sequence[ToolCall]) -> str:
    return "[TOOL_CALLS]" + _objects(calls)


def _mistral_args(calls: Sequence[ToolCall]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments.strip()}" for call in calls)


def _json(calls: Sequence[ToolCall]) -> str:
    return _object(calls[0]) if len(calls) == 1 else _objects(calls)


def _pythonic(calls: Sequence[ToolCall]) -> str:
    return "[" + ", ".join(f"{call.name}({_keywords(arguments_of(call))})" for call in calls) + "]"


def _keywords(arguments: dict[str, Any]) -> str:
    plain = {key: value for key, value in arguments.items() if is_keyword_name(key)}
    other = {key: value for key, value in arguments.items() if key not in plain}
    parts = [f"{key}={_literal(value, _PYTHON)}" for key, value in plain.items()]
    return ", ".join([*parts, *(["**" + _literal(other, _PYTHON)] if other else [])])


_JSON = {True: "true", False: "false", None: "null"}
_PYTHON = {True: "True", False: "False", None: "None"}


def _literal(value: Any, words: dict[bool | None, str]) -> str:
    """A JSON value in JSON or, with its words, in Python: all else is written the same."""
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_literal(item, words)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item, words) for item in value) + "]"
    return words[value]


_WRITERS: dict[str, Callable[[Sequence[ToolCall]], str]] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen3_coder,
    "llama3_json": _llama3_json,
    "mistral": _mistral,
    "mistral_args": _mistral_args,
    "pythonic": _pythonic,
    "json": _json,
}
