"""Grammars in the engine: compiled off the step, remembered, followed row by row; when they end a request and how."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.fakes.builders import EOS, VOCAB, make_request, scripted_engine, simulated_engine
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.word_grammar import WordGrammar, compiler

from paceline.contracts.decision import Reason
from paceline.contracts.ports import Grammar
from paceline.contracts.request import FinishReason
from paceline.engine import grammars, row_grammars
from paceline.engine.grammars import GrammarCache
from paceline.errors import EngineError, RequestError

TOKEN_BYTES = letter_bytes(VOCAB, (EOS,))
FACTORY = compiler(TOKEN_BYTES, EOS)
ENDLESS = WordGrammar((b"a", b"b"), 0, None)
FIXED = WordGrammar((b"abcd",), 2, 2)


def request(request_id: int = 0, grammar: WordGrammar = FIXED, num_tokens: int = 20, **more: Any) -> Any:
    return make_request(request_id, [1, 2, 3], num_tokens, grammar=grammar.spec, **more)


def text_of(token_ids: list[int]) -> bytes:
    return b"".join(TOKEN_BYTES[token] for token in token_ids)


class Slow:
    """A factory whose compilations wait until they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.num_compiled = 0

    def compile(self, grammar: bytes) -> Grammar:
        assert self.go.wait(20.0)
        self.num_compiled += 1
        return FACTORY.compile(grammar)


# --- the cache


def test_a_grammar_is_compiled_once_and_in_a_thread_of_its_own() -> None:
    factory = Slow()
    cache = GrammarCache(factory)
    assert not cache.prepare(FIXED.spec)
    assert not cache.prepare(FIXED.spec)
    factory.go.set()
    one, other = cache.compiled(FIXED.spec), cache.compiled(FIXED.spec)
    assert cache.prepare(FIXED.spec)
    assert factory.num_compiled == 1
    assert one.accept(0)
    assert other.accept(0)  # clones: neither moved the other
    cache.close()


def test_a_wrong_grammar_is_refused_again_without_compiling_it_again() -> None:
    factory = Slow()
    factory.go.set()
    cache = GrammarCache(factory)
    for ask in (cache.compiled, cache.prepare, cache.compiled):
        with pytest.raises(RequestError, match="not a grammar"):
            ask(b"{}")
    assert factory.num_compiled == 1
    cache.close()


def test_the_cache_keeps_the_grammars_of_late() -> None:
    factory = Slow()
    factory.go.set()
    cache = GrammarCache(factory, max_count=2)
    specs = [WordGrammar((b"a",), 1, k).spec for k in (1, 2, 3)]
    for spec in (*specs, specs[1], specs[2]):
        cache.compiled(spec)
    assert len(cache) == 2
    assert factory.num_compiled == 3
    cache.compiled(specs[0])
    assert factory.num_compiled == 4
    cache.close()


def test_a_compiler_that_panics_costs_its_grammar_and_no_thread() -> None:
    class Panics:
        def compile(self, grammar: bytes) -> Grammar:
            raise SystemExit("as a panic of a library is: no Exception")

    cache = GrammarCache(Panics())
    errors = []
    for ask in (cache.compiled, cache.prepare):
        with pytest.raises(RequestError, match="cannot be compiled") as caught:
            ask(FIXED.spec)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    cache.close()


def test_only_who_asks_first_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "READY_WITHIN_S", 60.0)
    factory = Slow()
    cache = GrammarCache(factory)
    first = threading.Thread(target=cache.prepare, args=(FIXED.spec,))
    first.start()
    while not len(cache):
        time.sleep(0.001)
    for _ in range(100):
        assert not cache.prepare(FIXED.spec)
    assert first.is_alive()
    factory.go.set()
    first.join(20.0)
    assert cache.prepare(FIXED.spec)
    cache.close()


def test_a_closed_engine_takes_no_grammar_and_says_why() -> None:
    factory = Slow()
    built = scripted_engine(grammars=factory)
    errors: list[Exception] = []

    def submit(request_id: int, grammar: WordGrammar) -> None:
        try:
            built.core.submit(request(request_id, grammar))
        except Exception as error:
            errors.append(error)

    waiting = [threading.Thread(target=submit, args=(1, FIXED)), threading.Thread(target=submit, args=(2, ENDLESS))]
    for thread in waiting:
        thread.start()
    while built.core._grammars.cache.__len__() < 2:
        time.sleep(0.001)
    built.core.close()
    factory.go.set()
    for thread in waiting:
        thread.join(20.0)
    submit(3, FIXED)
    assert [type(error) for error in errors] == [EngineError] * 3


# --- intake


def test_a_step_goes_on_while_a_grammar_is_compiled() -> None:
    factory = Slow()
    built = scripted_engine(grammars=factory)
    assert not built.core.prepare_grammar(FIXED.spec)
    assert built.run(make_request(7, [1, 2], 3))[7].last.finish is not None
    waiting = threading.Thread(target=built.core.submit, args=(request(1),))
    waiting.start()
    assert built.run(make_request(8, [1, 2], 3))[8].last.finish is not None
    factory.go.set()
    waiting.join(20.0)
    assert text_of(built.run()[1].token_ids) == b"abcdabcd"


def test_a_request_whose_grammar_is_wrong_changes_nothing() -> None:
    built = scripted_engine(grammars=FACTORY)
    good, bad = request(0), msgspec.structs.replace(request(1), grammar=b"nonsense")
    with pytest.raises(RequestError) as caught:
        built.core.submit_all([good, bad])
    assert caught.value.param == "grammar"
    assert not built.core.has_work


def test_an_engine_without_grammars_and_an_executor_without_masks_say_so() -> None:
    with pytest.raises(RequestError, match="has no grammars"):
        scripted_engine().core.submit(request())
    with pytest.raises(RequestError, match="has no grammars"):
        scripted_engine().core.prepare_grammar(FIXED.spec)
    simulated = simulated_engine(grammars=FACTORY)
    with pytest.raises(RequestError, match="without looking at a grammar"):
        simulated.core.submit(request())
    assert simulated.core.error is None


# --- how it ends


def test_it_ends_when_the_grammar_is_complete_without_another_token() -> None:
    built = scripted_engine(grammars=FACTORY)
    found = built.run(request())[0]
    assert text_of(found.token_ids) == b"abcdabcd"
    assert found.reason == FinishReason.STOP
    assert found.last.stop_reason is None
    assert EOS not in found.token_ids
    assert built.core.decisions(0)[-1].reason is Reason.GRAMMAR_END


def test_completion_at_the_very_limit_is_a_stop_and_one_token_less_is_a_length() -> None:
    tokens = scripted_engine(grammars=FACTORY).run(request())[0].token_ids
    exact = scripted_engine(grammars=FACTORY).run(request(num_tokens=len(tokens)))[0]
    assert (exact.token_ids, exact.reason) == (tokens, FinishReason.STOP)
    short = scripted_engine(grammars=FACTORY).run(request(num_tokens=len(tokens) - 1))[0]
    assert (short.token_ids, short.reason) == (tokens[:-1], FinishReason.LENGTH)


@pytest.mark.parametrize("sampling", [{"min_tokens": 18}, {"ignore_eos": True}, {"min_tokens": 18, "ignore_eos": True}])
def test_neither_a_minimum_nor_ignore_eos_outlives_a_complete_grammar(sampling: dict[str, Any]) -> None:
    found = scripted_engine(grammars=FACTORY).run(request(sampling=sampling))[0]
    assert text_of(found.token_ids) == b"abcdabcd"
    assert found.reason == FinishReason.STOP


@pytest.mark.parametrize("seed", range(6))
def test_a_minimum_and_ignore_eos_hold_while_the_grammar_may_go_on(seed: int) -> None:
    def run(**sampling: Any) -> Any:
        one = request(grammar=ENDLESS, temperature=1.0, seed=seed, sampling=sampling)
        return scripted_engine(grammars=FACTORY).run(one)[0]

    assert len(run(min_tokens=9).token_ids) >= 9
    endless = run(ignore_eos=True)
    assert endless.reason == FinishReason.LENGTH
    assert EOS not in endless.token_ids


def test_ids_of_the_request_that_stop_are_allowed_where_the_text_is_whole_and_only_there() -> None:
    """One set of stop ids for the grammar and the sampler: 12 spells `ca`, which is no part of the grammar."""
    ends = set()
    for seed in range(40):
        one = request(
            grammar=WordGrammar((b"ab",), 2, 4), temperature=1.0, seed=seed, sampling={"stop_token_ids": (12,)}
        )
        found = scripted_engine(grammars=FACTORY).run(one)[0]
        ends.add(found.last.stop_reason)
        text = text_of(found.token_ids)
        assert text[: len(text) - found.last.cut_bytes] in (b"abab", b"ababab", b"abababab")
    assert ends == {12, EOS, None}


def test_a_grammar_of_the_empty_text_ends_with_an_end_of_sequence() -> None:
    found = scripted_engine(grammars=FACTORY).run(request(grammar=WordGrammar((b"ab",), 0, 0)))[0]
    assert found.token_ids == [EOS]
    assert found.reason == FinishReason.STOP


def test_an_id_that_stops_ends_a_whole_text_before_the_minimum_and_its_own_text_is_cut() -> None:
    sampling = {"min_tokens": 3, "stop_token_ids": (12,), "ignore_eos": True}
    found = scripted_engine(grammars=FACTORY).run(request(grammar=WordGrammar((b"ab",), 0, 0), sampling=sampling))[0]
    assert (found.token_ids, found.last.stop_reason, found.last.cut_bytes) == ([12], 12, len(TOKEN_BYTES[12]))


# --- what a bad grammar does to others


class Odd:
    """A grammar that does what `how` says at its third token."""

    def __init__(self, how: str, inner: Grammar, num_accepted: int = 0) -> None:
        self.how, self.inner, self.num_accepted = how, inner, num_accepted

    def accept(self, token_id: int) -> bool:
        self.num_accepted += 1
        return self.inner.accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)

    def fill_mask(self, words: np.ndarray) -> None:
        self.inner.fill_mask(words)
        if self.num_accepted < 2:
            return
        if self.how == "raises":
            raise ValueError("the library is confused")
        if self.how == "slow":
            begin = time.thread_time()
            while time.thread_time() < begin + 0.02:
                pass
        if self.how == "nothing":
            words[:] = 0

    def clone(self) -> Odd:
        return Odd(self.how, self.inner.clone(), self.num_accepted)

    @property
    def finishes(self) -> bool:
        return self.inner.finishes

    def way_out(self, most: int, *, further: bool = False) -> list[int] | None:
        return self.inner.way_out(most, further=further)

    @property
    def accepting(self) -> bool:
        return self.inner.accepting and not (self.how == "nothing" and self.num_accepted >= 2)

    @property
    def done(self) -> bool:
        return self.inner.done

    @property
    def error(self) -> str:
        return "the lexer has too many states" if self.how == "error" and self.num_accepted >= 2 else ""


class OddFactory:
    def __init__(self, how: str) -> None:
        self.how = how

    def compile(self, grammar: bytes) -> Grammar:
        inner = FACTORY.compile(grammar)
        return Odd(self.how, inner) if grammar == ENDLESS.spec else inner


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "the library is confused"),
        ("error", "too many states"),
        ("slow", "to say what may follow"),
        ("nothing", "no token of the vocabulary"),
    ],
)
def test_trouble_with_one_grammar_ends_its_row_and_leaves_the_others_as_they_were(
    how: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_grammars, "MAX_MASK_S", 0.01 if how == "slow" else 60.0)
    neighbours = [make_request(1, [4, 5], 12), request(2), request(3, temperature=1.0, seed=3)]
    alone = {n.request_id: scripted_engine(grammars=FACTORY).run(n)[n.request_id].token_ids for n in neighbours}
    odd = request(0, grammar=ENDLESS, temperature=1.0, seed=1, sampling={"ignore_eos": True})
    built = scripted_engine(grammars=OddFactory(how))
    found = built.run(odd, *neighbours)
    assert found[0].reason == FinishReason.ERROR
    assert found[0].last.error is not None
    assert words in found[0].last.error
    assert {n.request_id: found[n.request_id].token_ids for n in neighbours} == alone
    assert built.core.error is None


def test_output_from_elsewhere_counts_and_what_is_not_legal_is_a_fault() -> None:
    begun = request(grammar=FIXED)
    legal = msgspec.structs.replace(begun, prior_output=(0, 1))  # a, b
    found = scripted_engine(grammars=FACTORY).run(legal)[0]
    assert text_of([0, 1, *found.token_ids]) == b"abcdabcd"
    wrong = msgspec.structs.replace(begun, prior_output=(2,))  # c
    found = scripted_engine(grammars=FACTORY).run(wrong)[0]
    assert found.reason == FinishReason.ERROR
    assert "not legal" in (found.last.error or "")


def test_logprobs_cover_every_token_up_to_the_end() -> None:
    found = scripted_engine(grammars=FACTORY).run(request(sampling={"logprobs": 0}))[0]
    logprobs = [entry for output in found.outputs for entry in output.logprobs or ()]
    assert [entry.token_id for entry in logprobs] == found.token_ids
