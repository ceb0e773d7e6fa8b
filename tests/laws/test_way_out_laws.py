"""Texts that are led to their end near their limit: the schedule changes no token of them either.

What a grammar allows near the limit depends on the tokens so far and on the limit, so a request that runs among others,
is preempted, drafted for or moved here gives what it gives alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.fakes.builders import EOS, VOCAB, Finished
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.scripts import MAX_MODEL_LEN, Script, run_script, scripts
from tests.fakes.word_grammar import WordGrammar, compiler

from paceline.contracts.request import FinishReason, Request
from paceline.text.grammar.spec import decode_spec, encode_spec

TOKEN_BYTES = letter_bytes(VOCAB, (EOS,))
FACTORY = compiler(TOKEN_BYTES, EOS)
GRAMMARS = (
    WordGrammar((b"ab", b"dda", b"c"), 1, 3),
    WordGrammar((b"a", b"b", b"bbb", b"cd"), 0, None),
    WordGrammar((b"abcd", b"bbbbbb"), 2, None),
    WordGrammar((b"d", b"e1", b"e12"), 1, None),
)
quick = settings(deadline=None, max_examples=20, derandomize=True, suppress_health_check=list(HealthCheck))
fresh = settings(deadline=None, max_examples=1500, suppress_health_check=list(HealthCheck))


def finishing(grammar: WordGrammar) -> bytes:
    return encode_spec(msgspec.structs.replace(decode_spec(grammar.spec), finish=True))


@st.composite
def led_scripts(draw: st.DrawFn) -> tuple[Script, dict[int, WordGrammar]]:
    script = draw(scripts())
    calls: dict[int, tuple[WordGrammar, int]] = {}  # by first choice
    found: dict[int, WordGrammar] = {}
    for step, requests in script.submits.items():
        changed = []
        for request in requests:
            first = request.request_id if request.leader is None else request.leader
            if first not in calls:
                calls[first] = draw(st.sampled_from(GRAMMARS)), draw(st.integers(4, 20))
            grammar, most = calls[first]
            legal = grammar.begins(b"".join(TOKEN_BYTES[t] for t in request.prior_output))
            fields: dict[str, Any] = {"prior_output": request.prior_output if legal else ()}
            sampling = msgspec.structs.replace(request.sampling, max_tokens=most)
            changed.append(msgspec.structs.replace(request, grammar=finishing(grammar), sampling=sampling, **fields))
            found[request.request_id] = grammar
        script.submits[step] = changed
    return script, found


def alone(request: Request, script: Script) -> Finished | None:
    """The same request in an engine of the same size, with nobody else in it and no drafts; None if it is refused."""
    sampling = msgspec.structs.replace(request.sampling, n=1)
    only = msgspec.structs.replace(request, leader=None, deadline=None, sampling=sampling)
    engine = {**script.engine, "depth": 1, "num_draft_tokens": 0, "cost": None}
    run = run_script(Script(engine, "none", {0: [only]}), grammars=FACTORY)
    return run.finished.get(request.request_id)


def check(made: tuple[Script, dict[int, WordGrammar]]) -> None:
    script, grammars = made
    run = run_script(script, grammars=FACTORY)
    kv = run.built.kv  # with drafts a smaller pool is full sooner than the one of a request alone
    longest = max(n for n in range(MAX_MODEL_LEN + 1) if n == 0 or not kv.never_fits(n))
    for request in script.requests:
        assert request.sampling.max_tokens is not None
        if request.request_id in run.refused or request.num_prompt + request.sampling.max_tokens > longest:
            continue
        done, right = run.finished[request.request_id], alone(request, script)
        assert right is not None
        note(f"request {request.request_id}: {grammars[request.request_id]} {done.reason} {done.last.error}")
        if done.reason in (FinishReason.ABORT, FinishReason.TIMEOUT):
            if not request.stop_strings:  # what one of them would yet cut has been shown
                assert done.token_ids == right.token_ids[: len(done.token_ids)]
            continue
        assert (done.reason, done.token_ids) == (right.reason, right.token_ids)


@quick
@given(led_scripts())
def test_law_1_any_schedule_gives_the_text_of_the_request_alone(made: tuple[Script, dict[int, WordGrammar]]) -> None:
    check(made)


@pytest.mark.long
@fresh
@given(led_scripts())
def test_law_1_holds_for_new_examples(made: tuple[Script, dict[int, WordGrammar]]) -> None:
    check(made)
