"""The conversation that `paceline chat` keeps, with a model that only listens."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from paceline.cli.chat import converse
from paceline.contracts.request import SamplingParams
from paceline.errors import RequestError


class Listener:
    """Stands in for an LLM: remembers what it was asked, answers with a number, refuses "too long"."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []

    def chat_stream(self, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[SimpleNamespace]:
        if messages[-1]["content"] == "too long":
            raise RequestError("the prompt is too long")
        self.asked.append([(m["role"], m["content"]) for m in messages])
        yield SimpleNamespace(text="answer ")
        yield SimpleNamespace(text=str(len(self.asked)))


def talk(monkeypatch: pytest.MonkeyPatch, *lines: str) -> Listener:
    typed = iter(lines)

    def read(_: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", read)
    listener = Listener()
    converse(listener, [], SamplingParams())  # type: ignore[arg-type]
    return listener


def test_each_turn_carries_the_whole_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = talk(monkeypatch, "one", "two").asked
    assert asked[1] == [("user", "one"), ("assistant", "answer 1"), ("user", "two")]


def test_new_forgets_all_but_the_system_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = talk(monkeypatch, "/system be brief", "one", "/new", "two").asked
    assert asked[1] == [("system", "be brief"), ("user", "two")]


def test_a_refused_turn_leaves_the_conversation_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = talk(monkeypatch, "one", "too long", "two").asked
    assert asked[1] == [("user", "one"), ("assistant", "answer 1"), ("user", "two")]


def test_unknown_commands_and_empty_lines_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk(monkeypatch, "/help", "", "/exit", "never read").asked == []
