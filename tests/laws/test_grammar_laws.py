"""The laws of the engine with grammars: the schedule changes no token, and every text that ends is one of the grammar.

The grammars are llguidance's; what they should allow is worked out anew, from the text alone, by `word_grammar`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.fakes.builders import EOS, VOCAB, make_scheduler
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.scripts import MAX_MODEL_LEN, Run, Script, run_script, scripts
from tests.fakes.stop_oracle import Ending, apply_stop_rules
from tests.fakes.toy_model import Draw, ToyDrafter, ToyModel
from tests.fakes.word_grammar import Reference, WordGrammar, compiler

from paceline.contracts.request import FinishReason, Request
from paceline.engine.journal import Planned, StepJournal, read_events, replay

TOKEN_BYTES = letter_bytes(VOCAB, (EOS,))
GRAMMARS = (
    WordGrammar((b"ab", b"dda", b"c"), 1, 3),
    WordGrammar((b"ccb", b"ab", b"d"), 2, 4),
    WordGrammar((b"a", b"b", b"bbb", b"cd"), 0, None),
    WordGrammar((b"abcd",), 2, 2),
    WordGrammar((b"d", b"e1", b"e12"), 1, None),  # e0, e1, ... are tokens, a lone e is none
)
quick = settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))
fresh = settings(deadline=None, max_examples=2000, suppress_health_check=list(HealthCheck))
FACTORY = compiler(TOKEN_BYTES, EOS)
Made: TypeAlias = tuple[Script, dict[int, WordGrammar]]


@st.composite
def grammar_scripts(draw: st.DrawFn) -> Made:
    """A script in which most calls have a grammar, and which by request. What came from elsewhere is legal."""
    script = draw(scripts())
    found: dict[int, WordGrammar] = {}
    calls: dict[int, WordGrammar | None] = {}  # by first choice
    for step, requests in script.submits.items():
        changed = []
        for request in requests:
            first = request.request_id if request.leader is None else request.leader
            if first not in calls:
                calls[first] = draw(st.sampled_from([None, *GRAMMARS]))
            grammar = calls[first]
            if grammar is not None:
                legal = grammar.begins(b"".join(TOKEN_BYTES[t] for t in request.prior_output))
                prior = request.prior_output if legal else ()
                request = msgspec.structs.replace(request, grammar=grammar.spec, prior_output=prior)
                found[request.request_id] = grammar
            changed.append(request)
        script.submits[step] = changed
    return script, found


def serial(
    request: Request, grammar: WordGrammar | None, windows: tuple[int | None, ...], longest: int
) -> tuple[Ending, list[int]]:
    """The request alone, everything recomputed for every token: how it ends, and all that was drawn."""
    model, sampling = ToyModel(VOCAB, windows), request.sampling
    limit = longest - request.num_prompt - len(request.prior_output)
    if sampling.max_tokens is not None:
        limit = min(limit, sampling.max_tokens - len(request.prior_output))
    stops = tuple(sampling.stop_token_ids) + (() if sampling.ignore_eos else (EOS,))
    how = Draw(sampling, request.choice, request.num_prompt, stops)
    ids = request.initial_ids().tolist()
    text = b"".join(TOKEN_BYTES[t] for t in request.prior_output)
    tokens: list[int] = []
    complete = None
    while len(tokens) < limit and complete is None:
        allowed = None
        if grammar is not None:
            allowed = Reference(grammar, TOKEN_BYTES, EOS).allowed(request, text)
        token = model.draw(int(model.hidden(ids)[-1]), len(ids) - 1, how, allowed)
        if grammar is not None and Reference(grammar, TOKEN_BYTES, EOS).ends(request, text, token):
            complete = len(tokens) + 1
        tokens.append(token)
        ids.append(token)
        text += TOKEN_BYTES[token]
    return apply_stop_rules(request, tokens, TOKEN_BYTES, (EOS,), limit, complete=complete), tokens


def check(script: Script, grammars: dict[int, WordGrammar], run: Run) -> None:
    kv = run.built.kv
    longest = max(n for n in range(MAX_MODEL_LEN + 1) if n == 0 or not kv.never_fits(n))
    for request in script.requests:
        if request.request_id in run.refused:
            continue
        done = run.finished[request.request_id]
        grammar = grammars.get(request.request_id)
        note(f"request {request.request_id}: {grammar} {done.reason} {done.token_ids} {done.last.error}")
        expected, drawn = serial(request, grammar, script.engine["windows"], longest)
        if done.reason in (FinishReason.ABORT, FinishReason.TIMEOUT):  # shows tokens that a stop string would yet drop
            assert done.token_ids == drawn[: len(done.token_ids)]
            continue
        assert done.reason == expected.finish
        assert done.token_ids == expected.token_ids
        assert done.last.stop_reason == expected.stop_reason
        text = b"".join(TOKEN_BYTES[t] for t in (*request.prior_output, *done.token_ids))
        assert text[: len(text) - done.last.cut_bytes] == expected.text
        if grammar is not None:
            if not request.sampling.include_stop_str_in_output:  # an id that stops is no part of the grammar's text
                assert grammar.begins(expected.text)
            if done.reason == FinishReason.STOP and done.last.stop_reason is None:
                assert grammar.whole(expected.text)


@quick
@given(grammar_scripts())
def test_law_1_any_schedule_gives_the_text_of_one_request_at_a_time(
    made: Made,
) -> None:
    script, grammars = made
    check(script, grammars, run_script(script, grammars=FACTORY))


@pytest.mark.long
@fresh
@given(grammar_scripts())
def test_law_1_holds_for_new_examples(made: Made) -> None:
    script, grammars = made
    check(script, grammars, run_script(script, grammars=FACTORY))


@settings(quick, max_examples=12)
@given(grammar_scripts())
def test_law_5_a_replay_needs_no_grammars(made: Made) -> None:
    """What a grammar decided is part of the result the journal has."""
    script, _ = made
    journal = StepJournal()
    run = run_script(script, journal, grammars=FACTORY)
    data = journal.to_bytes()
    drafter = ToyDrafter(ToyModel(VOCAB, script.engine["windows"])) if script.drafts == "host" else None
    result = replay(
        data,
        lambda: make_scheduler(
            run.built.executor.caps,
            run.built.settings,
            cost=script.engine["cost"],
            token_bytes=TOKEN_BYTES,
            drafter=drafter,
            prefix_caching=script.engine["prefix_caching"],
        ),
    )
    assert list(result.digests) == [e.digest for e in read_events(data) if isinstance(e, Planned) and e.digest]


@settings(quick, max_examples=12)
@given(grammar_scripts())
def test_law_2_nothing_of_a_grammar_is_left_when_all_have_ended(made: Made) -> None:
    script, _ = made
    built = run_script(script, grammars=FACTORY).built
    assert built.core._grammars is not None
    rows = built.core._grammars.rows
    assert not rows._grammars
    assert not rows._flights
    stats = built.kv.stats()
    assert stats.held == stats.limbo == stats.reserved == 0
