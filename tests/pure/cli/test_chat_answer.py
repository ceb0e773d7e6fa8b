"""What `paceline chat` prints of an answer, and what of it goes into the conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from paceline.cli.chat import answer
from paceline.cli.remote import Piece
from paceline.contracts.request import SamplingParams


class Says:
    def __init__(self, *pieces: Piece) -> None:
        self.pieces = pieces

    def chat_stream(self, messages: Sequence[dict[str, str]], params: SamplingParams) -> Iterator[Any]:
        yield from self.pieces


def test_an_answer_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(Says(Piece("Hel"), Piece(""), Piece("lo")), [], SamplingParams()) == "Hello"
    assert capsys.readouterr().out == "Hello\n"


def test_reasoning_is_told_apart_and_is_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [Piece("", "Let me"), Piece("", " see."), Piece("Four", ""), Piece(".")]
    assert answer(Says(*pieces), [], SamplingParams()) == "Four."
    assert capsys.readouterr().out == "[reasoning]\nLet me see.\n[answer]\nFour.\n"


def test_reasoning_that_is_cut_is_all_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(Says(Piece("", "Hm")), [], SamplingParams()) == ""
    assert capsys.readouterr().out == "[reasoning]\nHm\n"
