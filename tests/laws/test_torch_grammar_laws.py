"""Grammars through the torch sampler: whatever the schedule, each text is that of the request alone, and is whole."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.fakes.builders import EOS, Finished
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.torch_engines import MIXES, history_executor, make_requests, torch_engine
from tests.fakes.word_grammar import WordGrammar, compiler

from paceline.contracts.request import FinishReason, Request, SamplingParams, TokenPrompt

VOCAB = 48
TOKEN_BYTES = letter_bytes(VOCAB, (EOS,))
FACTORY = compiler(TOKEN_BYTES, EOS)
GRAMMARS = (
    WordGrammar((b"ab", b"dda", b"c"), 1, 3),
    WordGrammar((b"a", b"b", b"bbb", b"cd"), 0, None),
    WordGrammar((b"abcd",), 2, 2),
)


class Guess:
    """A host drafter whose drafts are now legal, now not."""

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> list[int]:
        return [(int(token_ids[-1]) + i) % 4 for i in range(max_drafts)]


def requests() -> list[Request]:
    made = []
    for index, request in enumerate(make_requests(2 * len(MIXES), max_tokens=24)):
        if index % 4:
            request = msgspec.structs.replace(request, grammar=GRAMMARS[index % len(GRAMMARS)].spec)
        made.append(request)
    return made


def run(traffic: list[Request], drafts: int = 0, **options: Any) -> dict[int, Finished]:
    executor = history_executor(num_blocks=options.pop("num_blocks", 64))
    engine = torch_engine(
        executor,
        grammars=FACTORY,
        token_bytes=TOKEN_BYTES,
        drafter=Guess() if drafts else None,
        num_draft_tokens=drafts,
        **options,
    )
    found = engine.run(*traffic)
    assert engine.core.error is None
    found_preemptions.append(engine.core.stats().num_preemptions)
    return found


found_preemptions: list[int] = []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefill_chunk_tokens": 2},
        {"drafts": 3},
        {"num_blocks": 12, "prefix_caching": False},
        {"drafts": 2, "num_blocks": 12, "prefill_chunk_tokens": 3},
    ],
)
def test_law_1_with_grammars(options: dict[str, Any]) -> None:
    found_preemptions.clear()
    traffic = requests()
    together = run(traffic, **options)
    if "num_blocks" in options:
        assert found_preemptions[-1] > 0
    for request in traffic:
        alone = run([request])[request.request_id]
        done = together[request.request_id]
        assert done.token_ids == alone.token_ids
        assert (done.reason, done.last.stop_reason) == (alone.reason, alone.last.stop_reason)
        if request.grammar is not None:
            grammar = next(g for g in GRAMMARS if g.spec == request.grammar)
            text = b"".join(TOKEN_BYTES[token] for token in done.token_ids)
            assert grammar.begins(text)
            assert done.reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert done.reason == FinishReason.LENGTH or grammar.whole(text)


def test_logprobs_under_a_grammar_are_those_of_the_logits_before_any_mask() -> None:
    """As they are for the same tokens in a prompt that no grammar knows of."""
    for index, grammar in enumerate(GRAMMARS):
        sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=index, logprobs=2)
        prompt = np.asarray([3, 1, 4, 1, 5], dtype=np.int32)
        asked = Request(request_id=1, prompt=TokenPrompt(ids=prompt), sampling=sampling, grammar=grammar.spec)
        done = run([asked])[1]
        entries = [entry for output in done.outputs for entry in output.logprobs or ()]
        assert [entry.token_id for entry in entries] == done.token_ids
        whole = np.concatenate([prompt, np.asarray(done.token_ids, dtype=np.int32)])
        scoring = SamplingParams(max_tokens=1, temperature=0.0, seed=0, prompt_logprobs=2)
        scored = run([Request(request_id=2, prompt=TokenPrompt(ids=whole), sampling=scoring)])[2]
        known = [e for output in scored.outputs for e in output.prompt_logprobs or () if e is not None]
        for entry, right in zip(entries, known[-len(entries) :], strict=True):
            assert (entry.token_id, entry.logprob, entry.top) == (right.token_id, right.logprob, right.top)
