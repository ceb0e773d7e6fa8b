"""Answers told apart: pieces joined are the message, whatever the portions; and each token of reasoning is counted."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.api_server import EOS, VOCAB, byte_tokenizer, text_ids
from tests.pure.text.tools.answers import any_calls, cuts, texts, tools_for

from paceline.text import TextPipeline
from paceline.text.reading import Message, Piece, Reading
from paceline.text.reasoning import FORMATS, Reasoning
from paceline.text.tools import ArgumentsDelta, CallEnded, CallStarted, Text, ToolCall, ToolSpec, serialise

few = settings(max_examples=settings().max_examples // 4)
THINK = FORMATS["think"]
SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TOKENIZER = byte_tokenizer()
MARKED = byte_tokenizer(special=SPECIAL)
F = ToolSpec("f", parameters={"type": "object", "properties": {"a": {}}})
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
OPEN = '<tool_call>\n{"name": "f", "arguments": {"a": '


def read(reading: Reading, parts: list[str], *, cut: bool = False) -> tuple[list[Piece], Message]:
    reader = reading.reader(TOKENIZER)
    pieces = [piece for part in parts for piece in reader.push(part, text_ids(part))]
    return [*pieces, *reader.finish(cut=cut)], reader.message


def without_ids(message: Message) -> list[Any]:
    return [(p.name, p.arguments) if isinstance(p, ToolCall) else p for p in message.parts]


def accumulated(pieces: list[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    """As a client puts a stream together: reasoning, text, calls by index."""
    thoughts, said = "", ""
    calls: dict[int, tuple[str, str]] = {}
    for piece in pieces:
        match piece:
            case Reasoning(text):
                thoughts += text
            case Text(text):
                said += text
            case CallStarted(index, name, _):
                calls[index] = (name, "")
            case ArgumentsDelta(index, text):
                calls[index] = (calls[index][0], calls[index][1] + text)
    return thoughts, said, list(calls.values())


@pytest.mark.parametrize("format", ["hermes", "mistral_args", "pythonic"])
@few
@given(data=st.data())
def test_a_stream_joined_is_the_message_whatever_the_portions(format: str, data: st.DataObject):
    calls = data.draw(any_calls)
    thought, opened = data.draw(texts), data.draw(st.booleans())
    answer = ("" if opened else "<think>") + f"{thought}</think>\n\n" + serialise(format, calls)
    reading = Reading(reasoning=THINK, inside=opened, format=format, tools=tuple(tools_for(calls)))
    pieces, message = read(reading, data.draw(cuts(answer)))
    thoughts, said, found = accumulated(pieces)
    assert (thoughts, said) == (message.reasoning, message.text)
    assert found == [(call.name, call.arguments) for call in message.calls]
    assert [(name, json.loads(arguments)) for name, arguments in found] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert len({call.id for call in message.calls}) == len(calls)
    assert without_ids(read(reading, [answer])[1]) == without_ids(message)


@given(data=st.data(), answer=texts)
def test_no_portions_matter_for_any_text(data: st.DataObject, answer: str):
    reading = Reading(reasoning=THINK, format="hermes", tools=(F,))
    parts, cut = data.draw(cuts(answer)), data.draw(st.booleans())
    assert without_ids(read(reading, parts, cut=cut)[1]) == without_ids(read(reading, [answer], cut=cut)[1])


def test_parts_come_in_their_order():
    pieces, message = read(Reading(reasoning=THINK, format="hermes"), [f"<think>Hm.</think>One.\n{CALL}\nTwo.{CALL}"])
    assert [type(piece).__name__ for piece in pieces] == [
        *("Reasoning", "Text"),
        *("CallStarted", "ArgumentsDelta", "CallEnded", "Text", "CallStarted", "ArgumentsDelta", "CallEnded"),
    ]
    call = ("f", '{"a": 1}')
    assert without_ids(message) == [Reasoning("Hm."), Text("One."), call, Text("Two."), call]
    assert (message.reasoning, message.text) == ("Hm.", "One.Two.")


def test_a_call_that_a_limit_cut_stays_and_any_other_is_text_again():
    pieces, message = read(Reading(format="hermes"), ["Well. " + OPEN], cut=True)
    assert without_ids(message) == [Text("Well."), ("f", '{"a": ')]
    assert isinstance(pieces[-1], CallEnded)
    assert pieces[-1].outcome == "cut"
    pieces, message = read(Reading(format="hermes"), ["Well. " + OPEN], cut=False)
    assert without_ids(message) == [Text("Well. " + OPEN)]  # nothing of it is lost
    assert isinstance(pieces[-1], CallEnded)
    assert pieces[-1].outcome == "broken"


@pytest.mark.parametrize(("answer", "called"), [(CALL, True), ("Hm.", False), (OPEN, False), (CALL + OPEN, True)])
def test_only_a_whole_call_counts(answer: str, called: bool):
    reader = Reading(format="hermes").reader(TOKENIZER)
    reader.push(answer)
    reader.finish(cut=True)
    assert reader.called is called


def test_without_parallel_calls_the_first_whole_one_is_all():
    reading = Reading(format="hermes", parallel=False)
    call = ("f", '{"a": 1}')
    for parts in ([CALL + CALL + "So."], list(CALL + CALL + "So.")):
        pieces, message = read(reading, parts)
        assert without_ids(message) == [call, Text("So.")]
        assert accumulated(pieces) == ("", "So.", [call])
    broken = f"{CALL}{OPEN}x</tool_call>"
    assert without_ids(read(reading, [broken])[1])[0] == call
    assert "<tool_call>" in read(reading, [broken])[1].text  # it is no call, so it is text


def test_without_a_format_calls_are_text_and_reasoning_may_be_left_out():
    assert without_ids(read(Reading(reasoning=THINK), ["<think>Hm.</think>" + CALL])[1]) == [
        Reasoning("Hm."),
        Text(CALL),
    ]
    reader = Reading(reasoning=THINK, show_reasoning=False).reader(TOKENIZER)
    pieces = reader.push("<think>Hm.</think>Yes.", text_ids("<think>Hm.</think>Yes."))
    assert [*pieces, *reader.finish(cut=False)] == [Text("Yes.")]
    assert reader.reasoning_tokens == len("<think>Hm.</think>")


@given(data=st.data(), inside=st.booleans())
def test_tokens_of_reasoning_are_counted_to_the_last(data: st.DataObject, inside: bool):
    """Whatever the portions of ids and text, and with markers of one token or of many."""
    thought, rest = data.draw(texts.filter(lambda text: "</think>" not in text)), data.draw(texts)
    rng = random.Random(data.draw(st.integers(0, 9)))
    for tokenizer, begin, end in (
        (TOKENIZER, text_ids("<think>"), text_ids("</think>")),
        (MARKED, [VOCAB], [VOCAB + 1]),
    ):
        reading = Reading(reasoning=THINK, inside=inside)
        ids = [*(() if inside else begin), *text_ids(thought), *end, *text_ids(rest), EOS]
        stream = TextPipeline(tokenizer).stream(shown=reading.shown(tokenizer))
        reader, count = reading.reader(tokenizer), 0
        while count < len(ids):
            size = rng.randint(1, 6)
            text = stream._detokenizer.push(ids[count : count + size])
            reader.push(text, ids[count : count + size])
            count += size
        reader.push(stream._detokenizer.finish())
        reader.finish(cut=False)
        assert reader.reasoning_tokens == len(ids) - len(text_ids(rest)) - 1
        repeated = thought.strip().startswith("<think>") and inside  # a marker that the prompt has already: left out
        assert reader.message.reasoning == (thought.strip()[len("<think>") :].strip() if repeated else thought.strip())


def test_no_reasoning_is_no_tokens_and_an_open_one_is_all():
    for text, inside, count in (("Yes.</think>", False, 0), ("<think>Hm", False, 9), ("Hm", True, 2), ("", True, 0)):
        reader = Reading(reasoning=THINK, inside=inside).reader(TOKENIZER)
        reader.push(text, text_ids(text))
        reader.finish(cut=True)
        assert reader.reasoning_tokens == count
    assert Reading(format="hermes").reader(TOKENIZER).reasoning_tokens is None


def test_markers_that_are_special_tokens_are_shown_and_others_not():
    reading = Reading(reasoning=THINK, format="hermes")
    assert reading.shown(MARKED) == set(range(VOCAB, VOCAB + 4))
    assert Reading(reasoning=THINK).shown(MARKED) == {VOCAB, VOCAB + 1}
    assert reading.shown(TOKENIZER) == set()


@pytest.mark.parametrize(("format", "size"), [("hermes", 29), ("mistral", 9), ("mistral_args", 9)])
def test_ids_are_what_templates_take(format: str, size: int):
    _, message = read(Reading(format=format), [serialise(format, [ToolCall("f", "{}")])])
    (call,) = message.calls
    assert call.id is not None
    assert len(call.id) == size
    assert call.id.startswith("call_") or call.id.isalnum()
