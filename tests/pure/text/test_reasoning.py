"""Reasoning told apart from the answer: whatever the split, wherever it ends."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.text.tools.answers import cuts, joined

from paceline.text.reasoning import FORMATS, Reasoning, ReasoningFormat, ReasoningSplitter, detect_reasoning
from paceline.text.tools import Text

THINK = FORMATS["think"]
pieces = st.sampled_from(["<think>", "</think>", "<", "</", "think>", "<thi", " ", "\n", "a", "é b", "<tool_call>"])
answers = st.lists(pieces, max_size=12).map("".join)


def split(parts: list[str], *, inside: bool = False) -> list[Reasoning | Text]:
    splitter = ReasoningSplitter(THINK, inside=inside)
    events = [event for part in parts for event in splitter.feed(part)]
    return joined([*events, *splitter.finish()])


@pytest.mark.parametrize(
    ("answer", "inside", "reasoning", "text"),
    [
        ("<think>\nHm. \n</think>\n\nYes.\n", False, "Hm.", "Yes.\n"),
        (" \n<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
        ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        ("<think>\nHm.\n</think>Yes.", True, "Hm.", "Yes."),  # opened once more
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("\n</think>\nYes.", True, "", "Yes."),
        ("</think>Yes.", True, "", "Yes."),
        ("<think>Hm. <think> a < b </thin", False, "Hm. <think> a < b </thin", ""),  # cut
        ("Hm. ", True, "Hm. ", ""),
        ("Yes. <think>Hm.</think>", False, "", "Yes. <think>Hm.</think>"),
        ("<think>Hm.</think>Yes. <think>No.</think> ", False, "Hm.", "Yes. <think>No.</think> "),
        (" Yes.</think>", False, "", " Yes.</think>"),
        (" <thi", False, "", " <thi"),
        (" <thi", True, "<thi", ""),
        (" \n", False, "", " \n"),
        ("", True, "", ""),
    ],
)
def test_reasoning_and_text(answer: str, inside: bool, reasoning: str, text: str):
    expected = ([Reasoning(reasoning)] if reasoning else []) + ([Text(text)] if text else [])
    assert split([answer], inside=inside) == expected
    assert split(list(answer), inside=inside) == expected


@given(data=st.data(), answer=answers, inside=st.booleans())
def test_no_split_matters_and_only_markers_and_space_go(data: st.DataObject, answer: str, inside: bool):
    events = split([answer], inside=inside)
    assert split(data.draw(cuts(answer)), inside=inside) == events
    kinds = [type(event) for event in events]
    assert kinds in ([], [Reasoning], [Text], [Reasoning, Text])
    reasoning, text = ("".join(event.text for event in events if type(event) is kind) for kind in (Reasoning, Text))
    thought = rf"\s*(<think>)?\s*{re.escape(reasoning)}\s*(</think>)?\s*"
    assert re.fullmatch(thought + re.escape(text), answer)


def test_what_is_certain_comes_at_once():
    splitter = ReasoningSplitter(THINK)
    assert splitter.feed("<think>") == []
    assert splitter.inside
    assert splitter.feed("\nLet me see </th") == [Reasoning("Let me see")]
    assert splitter.feed("is. ") == [Reasoning(" </this.")]
    assert splitter.inside
    assert splitter.feed("</think>") == []
    assert not splitter.inside
    assert splitter.feed("\n\nYes, ") == [Text("Yes, ")]
    assert splitter.feed("</think>") == [Text("</think>")]
    assert splitter.finish() == []


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% set content = content.split('</think>')[-1].lstrip('\\n') %}", THINK),
        ("{{ '[THINK]' + thinking + '[/THINK]' }}", ReasoningFormat("[THINK]", "[/THINK]")),
        ("{{ message.content }}", None),
        (None, None),
    ],
)
def test_the_template_says_which_markers(template: str | None, expected: ReasoningFormat | None):
    assert detect_reasoning(template) == expected


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("What is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
    ],
)
def test_a_prompt_may_end_inside_reasoning(prompt: str, is_open: bool):
    assert THINK.is_open(prompt) is is_open
