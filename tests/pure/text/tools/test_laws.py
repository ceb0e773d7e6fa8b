"""What holds for every format: no split matters, nothing is lost, what is written is read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pure.text.tools.answers import any_calls, cuts, joined, parse, tagged_calls, texts, texts_of, tools_for

from paceline.text.tools import (
    FORMATS,
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Text,
    Tidied,
    ToolCall,
    ToolSpec,
    collect,
    make_parser,
    serialise,
)

# what may vanish behind calls
MARKUP = r"(?:\s|</tool_call>|<\|python_end\|>|<\|tool_call_end\|>|<\|/tool_call\|>|</TOOLCALL>|```|[\],;])*"
few = settings(max_examples=settings().max_examples // 6)  # of each format
SAME_TEXT = ("hermes", "llama3_json", "mistral", "mistral_args", "json")  # arguments come out as they were written


def values_of(calls: list[ToolCall]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


def calls_for(format: str) -> st.SearchStrategy[list[ToolCall]]:
    return tagged_calls if format == "qwen3_coder" else any_calls


@pytest.mark.parametrize("format", FORMATS)
@few
@given(data=st.data())
def test_calls_come_back_whatever_the_split(format: str, data: st.DataObject):
    calls = data.draw(calls_for(format))
    tools = tools_for(calls)
    if format == "qwen3_coder":  # one schema for each tool: of equal names, only the first
        calls = list({call.name: call for call in reversed(calls)}.values())
        tools = tools_for(calls)
    text = serialise(format, calls)
    events = parse(format, data.draw(cuts(text)), tools)
    parsed = collect(events)
    assert values_of(parsed.calls) == values_of(calls)
    assert not parsed.text.strip()
    assert events == parse(format, [text], tools) == parse(format, text, tools)
    if format in SAME_TEXT:
        assert [call.arguments for call in parsed.calls] == [call.arguments for call in calls]


@pytest.mark.parametrize("format", FORMATS)
@few
@given(data=st.data())
def test_an_answer_cut_anywhere_gives_a_beginning(format: str, data: st.DataObject):
    calls = data.draw(calls_for(format))[:2]
    text = serialise(format, calls)
    check_beginnings(format, calls, data.draw(st.sets(st.integers(0, len(text)), max_size=10)))


@pytest.mark.parametrize("format", FORMATS)
def test_an_answer_cut_at_each_place_gives_a_beginning(format: str):
    arguments = '{"a": "x\\n\\u00e9 \\"q\\" </tool_call>", "b": [1, -2.5e3, {"c": null}], "d": true, "e f": {}}'
    check_beginnings(format, [ToolCall("f.g", arguments), ToolCall("h", "{}"), ToolCall("f.g", '{"a": ""}')])


def check_beginnings(format: str, calls: list[ToolCall], sizes: Iterable[int] = ()) -> None:
    text = serialise(format, calls)
    tools = tools_for(calls)
    whole = parse(format, [text], tools)
    full = {event.index: event.text for event in whole if isinstance(event, ArgumentsDelta)}
    for size in sizes or range(len(text)):
        events = parse(format, [text[:size]], tools)
        started = [event for event in events if isinstance(event, CallStarted)]
        assert started == [event for event in whole if isinstance(event, CallStarted)][: len(started)]
        for event in events:
            if isinstance(event, ArgumentsDelta):
                is_last = event.index == len(started) - 1
                assert full[event.index].startswith(event.text) if is_last else full[event.index] == event.text
        ends = [event for event in events if isinstance(event, CallEnded)]
        assert [end.outcome for end in ends[:-1]] == ["complete"] * len(ends[:-1])
        assert all(end.outcome in ("complete", "cut") for end in ends)
        assert_nothing_lost(text[:size], events)


@pytest.mark.parametrize("format", FORMATS)
@few
@given(data=st.data(), text=texts, named=st.booleans())
def test_any_text_is_read_the_same_in_any_portions(format: str, data: st.DataObject, text: str, named: bool):
    tools = [ToolSpec("f"), ToolSpec("g")] if named else []
    events = parse(format, [text], tools)
    assert parse(format, data.draw(cuts(text)), tools) == events
    assert_well_formed(events)
    assert_nothing_lost(text, events)


@pytest.mark.parametrize("format", FORMATS)
@few
@given(data=st.data())
def test_text_around_calls_comes_out_exactly(format: str, data: st.DataObject):
    calls = data.draw(calls_for(format))[:1]
    tools = tools_for(calls)
    plain = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="<[`{"), max_size=12)
    before, after = data.draw(plain), data.draw(plain)
    text = serialise(format, calls)
    if format in (
        "llama3_json",
        "json",
        "pythonic",
    ):  # no marker, so nothing may stand before them; see their own tests
        before = ""
    events = parse(format, data.draw(cuts(before + text + after)), tools)
    assert texts_of(events) == before + after
    assert values_of(collect(events).calls) == values_of(calls)


@pytest.mark.parametrize("format", FORMATS)
@few
@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="<[`{"), max_size=30))
def test_text_that_cannot_be_a_marker_is_not_held_back(format: str, text: str):
    parser = make_parser(format)
    assert texts_of(parser.feed("." + text)) == "." + text
    assert parser.finish() == []


@pytest.mark.parametrize("format", FORMATS)
@few
@given(data=st.data())
def test_no_event_says_nothing(format: str, data: st.DataObject):
    text = serialise(format, data.draw(calls_for(format)))
    parser = make_parser(format)
    for part in (*text, None):
        for event in parser.finish() if part is None else parser.feed(part):
            assert not isinstance(event, (Text, ArgumentsDelta)) or event.text


MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>", "<TOOLCALL>", "[")


class Counted(str):
    """Text that counts the characters that are copied out of it or joined to it."""

    num_copied = 0

    def __getitem__(self, place: Any) -> Counted:
        return self._count(super().__getitem__(place))

    def __add__(self, other: str) -> Counted:
        return self._count(super().__add__(other))

    def __radd__(self, other: str) -> Counted:
        return self._count(other + str(self))

    @classmethod
    def _count(cls, text: str) -> Counted:
        cls.num_copied += len(text)
        return cls(text)


@pytest.mark.parametrize("format", FORMATS)
def test_the_work_grows_with_the_text_and_not_with_its_square(format: str):
    """Markers of which nothing comes, and calls, all in one piece."""
    one = serialise(format, [ToolCall("f", "{}")])
    for text in (one * 300, *(marker * 1000 for marker in MARKERS)):
        parser = make_parser(format)
        Counted.num_copied = 0
        events = [*parser.feed(Counted(text)), *parser.finish()]
        assert Counted.num_copied < 10 * len(text)
        assert_nothing_lost(text, joined(events))


@pytest.mark.parametrize("format", FORMATS)
@few
@given(data=st.data(), text=texts)
def test_tidied_takes_white_space_beside_calls_and_nothing_else(format: str, data: st.DataObject, text: str):
    parser = Tidied(make_parser(format))
    events = joined([event for part in data.draw(cuts(text)) for event in parser.feed(part)])
    events = joined([*events, *parser.finish()])
    plain = parse(format, [text])
    assert [event for event in events if not isinstance(event, Text)] == [
        event for event in plain if not isinstance(event, Text)
    ]
    expected = []
    for place, event in enumerate(plain):
        if isinstance(event, Text):
            body = event.text.lstrip() if place else event.text
            body = body.rstrip() if place + 1 < len(plain) else body
            expected += [body] if body else []
    assert [event.text for event in events if isinstance(event, Text)] == expected


def assert_well_formed(events: list[Any]) -> None:
    """Calls count up, do not overlap, and are JSON objects when complete."""
    index, arguments, is_open = -1, "", False
    for event in events:
        match event:
            case Text(text):
                assert text
                assert not is_open
            case CallStarted(at, name):
                assert at == index + 1
                assert name
                assert not is_open
                index, arguments, is_open = at, "", True
            case ArgumentsDelta(at, text):
                assert at == index
                assert is_open
                arguments += text
            case CallEnded(at, outcome, _):
                assert at == index
                assert is_open
                is_open = False
                if outcome == "complete":
                    assert isinstance(json.loads(arguments), dict)
    assert not is_open


def assert_nothing_lost(text: str, events: list[Any]) -> None:
    """Texts and calls as written, in order, are the whole but for markers that ended calls."""
    pieces = [event.text if isinstance(event, Text) else event.raw for event in events if not is_inside(event)]
    pattern = MARKUP + "".join(re.escape(piece) + MARKUP for piece in pieces)
    assert re.fullmatch(pattern, text)


def is_inside(event: Any) -> bool:
    return isinstance(event, (CallStarted, ArgumentsDelta))
