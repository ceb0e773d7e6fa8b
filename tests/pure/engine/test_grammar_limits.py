"""Limits of the library, which all clones of a grammar meet together: no request pays for the texts of others."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.fakes.builders import EOS, scripted_engine
from tests.fakes.word_grammar import compiler
from tests.pure.engine.test_grammars import ENDLESS, FACTORY, FIXED, TOKEN_BYTES, request

from paceline.contracts.ports import Grammar
from paceline.contracts.request import FinishReason
from paceline.text.grammar import GrammarSpec, encode_spec
from paceline.text.grammar import compiler as compiler_module


class Tired:
    """A grammar whose clones together may be asked for `limit` masks."""

    def __init__(self, inner: Grammar, asked: list[int], limit: int) -> None:
        self.inner, self.asked, self.limit = inner, asked, limit

    def accept(self, token_id: int) -> bool:
        return not self.error and self.inner.accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)

    def fill_mask(self, words: np.ndarray) -> None:
        self.asked.append(0)
        self.inner.fill_mask(words)

    def clone(self) -> Tired:
        return Tired(self.inner.clone(), self.asked, self.limit)

    @property
    def finishes(self) -> bool:
        return self.inner.finishes

    def way_out(self, most: int, *, further: bool = False) -> list[int] | None:
        return self.inner.way_out(most, further=further)

    @property
    def accepting(self) -> bool:
        return not self.error and self.inner.accepting

    @property
    def done(self) -> bool:
        return not self.error and self.inner.done

    @property
    def error(self) -> str:
        return "too many states" if len(self.asked) > self.limit else ""


class TiredFactory:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_compiled = 0

    def compile(self, grammar: bytes) -> Grammar:
        self.num_compiled += 1
        return Tired(FACTORY.compile(grammar), [], self.limit)


def test_rows_go_on_when_others_have_used_up_what_a_grammar_may_take() -> None:
    endless = {"ignore_eos": True}  # 20 tokens, so as many masks
    calls = [
        request(i, FIXED if i % 2 else ENDLESS, temperature=1.0, seed=i, sampling={} if i % 2 else endless)
        for i in range(6)
    ]
    wanted = {c.request_id: scripted_engine(grammars=FACTORY).run(c)[c.request_id].token_ids for c in calls}
    factory = TiredFactory(limit=25)
    built = scripted_engine(grammars=factory)
    found = built.run(*calls)
    assert {i: found[i].token_ids for i in wanted} == wanted
    assert factory.num_compiled > 2
    again = built.run(*(msgspec.structs.replace(c, request_id=10 + c.request_id) for c in calls))
    assert {i: again[10 + i].token_ids for i in wanted} == wanted
    assert all(one.reason != FinishReason.ERROR for one in [*found.values(), *again.values()])


def test_a_row_that_is_at_the_limit_by_itself_is_at_fault() -> None:
    built = scripted_engine(grammars=TiredFactory(limit=6))
    found = built.run(request(0, ENDLESS, sampling={"ignore_eos": True}))[0]
    assert found.reason == FinishReason.ERROR
    assert "too many states" in (found.last.error or "")
    assert built.core.error is None


def test_limits_of_the_real_library_are_met_by_many_texts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text alone is far below them."""
    monkeypatch.setitem(compiler_module.LIMITS, "max_lexer_states", 400)
    spec = encode_spec(GrammarSpec(kind="regex", value="[ab]*a[ab]{11}c"))
    made = compiler(TOKEN_BYTES, EOS)
    built = scripted_engine(grammars=made)
    compiled = []
    monkeypatch.setattr(made, "compile", lambda grammar: compiled.append(0) or type(made).compile(made, grammar))
    for begin in range(0, 40, 4):
        calls = [
            msgspec.structs.replace(request(i, temperature=1.0, seed=i), grammar=spec) for i in range(begin, begin + 4)
        ]
        found = built.run(*calls)
        assert [found[c.request_id].last.error for c in calls] == [None] * 4
    assert len(compiled) > 1
