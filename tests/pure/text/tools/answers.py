"""Random calls and texts, and what tests of every format do with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from paceline.text.reasoning import Reasoning
from paceline.text.tools import ArgumentsDelta, Event, Text, ToolCall, ToolSpec, make_parser

# Pieces of which texts are made that parsers may stumble over.
PIECES = (
    *("<tool_call>", "</tool_call>", "<function=f>", "<parameter=a>", "</parameter>", "</function>"),
    *("<|tool_call|>", "<|/tool_call|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>", "<|python_end|>"),
    *("```tool_code", "```json", "```", "[f(", "f(a=1)", "g()", "a=", "**{", ")]", "), "),
    *('{"name": "f", "arguments": {', '{"name": "g", "parameters": {', '"a": ', "}}", "}", "]", "[", "{", "(", "'"),
    *(
        '"',
        '\\"',
        "\\",
        "\\u00e9",
        "\\n",
        "\n",
        "\t",
        " ",
        ";",
        ",",
        ":",
        "<",
        "1",
        "-1.5e3",
        "true",
        "None",
        "é",
        "👩‍👧",
    ),
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=8).map("".join)
numbers = (
    st.integers(-(10**40), 10**40)
    | st.sampled_from([0.1, -1.5e-7, 1e300, 12345678901234567890123456789])
    | st.floats(allow_nan=False, allow_infinity=False)
)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=5
)
names = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z]{1,4})?", fullmatch=True)


def calls_of(arguments: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[ToolCall]]:
    one = st.builds(
        lambda name, value, ascii, indent: ToolCall(name, json.dumps(value, ensure_ascii=ascii, indent=indent)),
        names,
        arguments,
        st.booleans(),
        st.sampled_from([None, None, 2]),
    )
    return st.lists(one, min_size=1, max_size=4)


any_calls = calls_of(st.dictionaries(texts, values, max_size=4))
tagged_calls = calls_of(  # the form with tags cannot hold its own end in a string, nor every key
    st.dictionaries(
        st.from_regex(r"[a-z_][\w.\-]{0,8}", fullmatch=True),
        values.filter(lambda value: not (isinstance(value, str) and "</parameter>" in value)),
        max_size=4,
    )
)


def tools_for(calls: Iterable[ToolCall]) -> list[ToolSpec]:
    """Tools whose schemas have the types of these arguments."""
    merged: dict[str, dict[str, Any]] = {}
    for call in calls:
        properties = merged.setdefault(call.name, {})
        for key, value in json.loads(call.arguments).items():
            properties.setdefault(key, {"type": _type_of(value)})
    return [
        ToolSpec(name, parameters={"type": "object", "properties": properties}) for name, properties in merged.items()
    ]


def _type_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """The text in random portions."""
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=8)))
    return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]


def parse(format: str, parts: Iterable[str], tools: Sequence[ToolSpec] = ()) -> list[Event]:
    """All events, pieces that follow each other joined."""
    parser = make_parser(format, tools)
    events = [event for part in parts for event in parser.feed(part)]
    return joined([*events, *parser.finish()])


def joined(events: Iterable[Any]) -> list[Any]:
    done: list[Any] = []
    for event in events:
        last = done[-1] if done else None
        if isinstance(event, (Text, ArgumentsDelta, Reasoning)) and type(event) is type(last):
            done[-1] = type(event)(**{**_fields(event), "text": last.text + event.text})
        else:
            done.append(event)
    return done


def _fields(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def texts_of(events: Iterable[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))
