"""Grammars of strangers, tried in a process of its own: what kills it is refused, and the next one is served."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import IO

import numpy as np
import pytest
from tests.pure.text.grammar.test_compiler import VOCABULARY

from paceline.errors import EngineError, RequestError
from paceline.text.grammar import GrammarChecker, GrammarSpec, checker_main, encode_spec
from paceline.text.grammar import checker as checker_module

# an intersection whose automaton has tens of thousands of states: no limit of the library stops it
SLOW = "start: A\nA: /(.*a.{15}.*)/ & /(.*b.{15}.*)/ & ~/(.*c.{12}.*)/"
FINE = encode_spec(GrammarSpec(kind="choice", value=["yes", "no"]))


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(lambda: VOCABULARY, cpu_limit_s=0.3)
    yield made
    made.close()


def test_its_process_starts_with_the_first_grammar_and_stays(checker: GrammarChecker) -> None:
    assert checker.pid is None
    checker.check(FINE)
    pid = checker.pid
    checker.check(encode_spec(GrammarSpec(kind="json", value={"type": "object"})))
    assert checker.pid == pid is not None


def test_a_wrong_grammar_is_told_as_the_compiler_tells_it(checker: GrammarChecker) -> None:
    with pytest.raises(RequestError, match="unclosed group") as caught:
        checker.check(encode_spec(GrammarSpec(kind="regex", value="(")))
    assert caught.value.param == "grammar"
    with pytest.raises(RequestError, match="not a grammar"):
        checker.check(b"{}")


def test_a_slow_grammar_ends_its_process_and_nothing_else(checker: GrammarChecker) -> None:
    checker.check(FINE)
    before = checker.pid
    with pytest.raises(RequestError, match="too much time or memory"):
        checker.check(encode_spec(GrammarSpec(kind="lark", value=SLOW)))
    assert checker.pid is None
    checker.check(FINE)
    assert checker.pid not in (None, before)


def test_a_process_that_died_meanwhile_is_no_verdict_on_the_next_grammar(checker: GrammarChecker) -> None:
    checker.check(FINE)
    before = checker.pid
    assert before is not None
    os.kill(before, signal.SIGSEGV)
    checker.check(FINE)
    assert checker.pid not in (None, before)


@pytest.mark.parametrize("num_deaths", [1, 2])
def test_only_the_crash_of_a_fresh_process_is_a_refusal(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch, num_deaths: int
) -> None:
    real, deaths = checker_module.send, []

    def deadly(pipe: IO[bytes], data: bytes) -> None:
        if data == FINE and len(deaths) < num_deaths:
            assert checker.pid is not None
            deaths.append(checker.pid)
            os.kill(checker.pid, signal.SIGSEGV)
        real(pipe, data)

    checker.check(FINE)
    monkeypatch.setattr(checker_module, "send", deadly)
    if num_deaths == 1:
        checker.check(FINE)
    else:
        with pytest.raises(RequestError, match="a crash"):
            checker.check(FINE)
    assert len(set(deaths)) == num_deaths


def test_a_machine_that_is_too_busy_is_no_verdict(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    checker.check(FINE)
    monkeypatch.setattr(checker_module, "WAIT_LIMIT_S", 0.0)
    with pytest.raises(EngineError):
        checker.check(encode_spec(GrammarSpec(kind="lark", value=SLOW)))
    assert checker.pid is None
    monkeypatch.undo()
    checker.check(FINE)


def test_a_process_that_does_not_start_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    made = GrammarChecker(lambda: VOCABULARY)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EngineError, match="does not start"):
        made.check(FINE)
    monkeypatch.undo()
    made.check(FINE)
    made.close()
    assert made.pid is None


def test_a_grammar_that_nothing_satisfies_is_refused(checker: GrammarChecker) -> None:
    with pytest.raises(RequestError):
        checker.check(encode_spec(GrammarSpec(kind="json", value={"type": "integer", "minimum": 3, "maximum": 2})))


def test_a_grammar_that_meets_a_limit_on_the_way_is_refused(checker: GrammarChecker) -> None:
    """Also where the text may end after each token."""
    with pytest.raises(RequestError, match="too many expressions") as caught:
        checker.check(encode_spec(GrammarSpec(kind="regex", value="((a{1,100}){1,100}){1,100}")))
    assert "counts" in caught.value.fix


def test_tokens_are_drawn_at_a_pace() -> None:
    ids, lengths = np.arange(5), np.asarray([-1, 0, 2, 5, 2])
    assert checker_main._at("any", ids, lengths).tolist() == [1, 2, 3, 4]
    assert checker_main._at("shortest", ids, lengths).tolist() == [2, 4]
    assert checker_main._at("longest", ids, lengths).tolist() == [3]
    for pace in checker_main.PACES:
        assert checker_main._at(pace, ids[:1], lengths[:1]).tolist() == [0]
        assert checker_main._at(pace, ids[:2], lengths[:2]).tolist() == [1]


def test_after_the_end_nothing_is_checked() -> None:
    made = GrammarChecker(lambda: VOCABULARY)
    made.close()
    made.close()
    with pytest.raises(EngineError):
        made.check(FINE)
    assert made.pid is None
