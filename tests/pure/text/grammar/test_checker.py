"""Grammars of strangers, tried in a process of its own: what kills it is refused, and the next one is served."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.pure.text.grammar.test_compiler import VOCABULARY

from paceline.errors import RequestError
from paceline.text.grammar import GrammarChecker, GrammarSpec, encode_spec

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


def test_a_crash_is_a_refusal(checker: GrammarChecker) -> None:
    checker.check(FINE)
    assert checker.pid is not None
    os.kill(checker.pid, signal.SIGSEGV)
    with pytest.raises(RequestError, match="a crash"):
        checker.check(FINE)
    checker.check(FINE)


def test_a_grammar_that_nothing_satisfies_is_refused(checker: GrammarChecker) -> None:
    with pytest.raises(RequestError):
        checker.check(encode_spec(GrammarSpec(kind="json", value={"type": "integer", "minimum": 3, "maximum": 2})))


def test_after_the_end_nothing_is_checked() -> None:
    made = GrammarChecker(lambda: VOCABULARY)
    made.close()
    made.close()
    with pytest.raises(RequestError):
        made.check(FINE)
