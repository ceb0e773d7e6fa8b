"""Failures that users of inference engines have reported in public, as behaviour of this one.

Each runs the whole engine on the toy model. "Unharmed" means: the text of the request alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.fakes.builders import EOS, VOCAB, Built, Finished, make_request, reference, scripted_engine
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.toy_model import ToyDrafter, ToyModel

from paceline.contracts.decision import Reason
from paceline.contracts.request import FinishReason, Request, SamplingParams, expand_choices
from paceline.errors import ConfigError, RequestError

MODEL = ToyModel(VOCAB)
BYTES = letter_bytes(VOCAB, (EOS,))
ON = {"ignore_eos": True}


def free_run(request_id: int, prompt: list[int], max_tokens: int = 8, **fields: Any) -> Request:
    sampling = {**ON, **fields.pop("sampling", {})}
    return make_request(request_id, prompt, max_tokens, sampling=sampling, **fields)


def alone(request: Request) -> list[int]:
    assert request.sampling.max_tokens is not None
    return reference(request, request.sampling.max_tokens, MODEL)


def unharmed(found: dict[int, Finished], *requests: Request) -> None:
    for request in requests:
        assert found[request.request_id].token_ids == alone(request)
        assert found[request.request_id].reason == FinishReason.LENGTH


def baseline(built: Built) -> None:
    stats = built.kv.stats()
    assert (stats.held, stats.limbo, stats.reserved) == (0, 0, 0)


def test_t1_a_prompt_larger_than_the_pool_is_refused_with_the_limit_and_the_next_one_runs() -> None:
    built = scripted_engine(num_blocks=8, block_size=4, max_model_len=256)
    small = free_run(1, [1, 2, 3])
    try:
        built.core.submit(make_request(0, list(range(40))))
        found = built.run(small)
        assert found[0].reason == FinishReason.ERROR
        message = found[0].last.error or ""
    except RequestError as error:
        message = str(error)
        found = built.run(small)
    assert "32" in message or "8" in message  # tokens or blocks that there are
    unharmed(found, small)


def test_t3_waiting_requests_in_an_idle_pool_are_scheduled_at_the_next_step() -> None:
    built = scripted_engine(max_rows=4)
    for i in range(4):
        built.core.submit(free_run(i, [1, 2, i]))
    assert sorted(o.request_id for o in built.step()) == [0, 1, 2, 3]


def test_t3_a_request_that_waits_has_a_named_reason() -> None:
    built = scripted_engine(max_rows=1)
    built.core.submit(free_run(0, [1, 2]))
    built.core.submit(free_run(1, [3, 4]))
    built.step()
    assert Reason.NO_ROWS in [d.reason for d in built.core.decisions(1)]


def test_t5_an_empty_prompt_is_refused_and_the_engine_lives() -> None:
    built = scripted_engine()
    with pytest.raises(RequestError, match="prompt"):
        built.core.submit(make_request(0, []))
    other = free_run(1, [5, 6])
    unharmed(built.run(other), other)


@pytest.mark.parametrize("depth", [1, 2])
def test_t7_a_first_token_that_stops_ends_the_turn_with_empty_text(depth: int) -> None:
    built = scripted_engine(depth=depth)
    prompt = [9, 8, 7]
    first = alone(free_run(0, prompt, 1))[0]
    stopped = free_run(0, prompt, sampling={"stop_token_ids": (first,)})
    other = free_run(1, [1, 2, 3, 4])
    found = built.run(stopped, other)
    assert found[0].reason == FinishReason.STOP
    assert found[0].last.stop_reason == first
    text = b"".join(BYTES[t] for t in found[0].token_ids)
    assert text[: len(text) - found[0].last.cut_bytes] == b""
    unharmed(found, other)
    baseline(built)


@pytest.mark.parametrize(
    "sampling", [{"stop_token_ids": (VOCAB,)}, {"logit_bias": {VOCAB + 3: 1.0}}, {"stop_token_ids": (-1,)}]
)
def test_t9_ids_outside_the_vocabulary_are_refused_and_neighbours_are_unharmed(sampling: dict[str, Any]) -> None:
    built = scripted_engine()
    other = free_run(1, [1, 2, 3, 4])
    built.core.submit(other)
    built.step()
    with pytest.raises(RequestError, match="vocabulary"):
        built.core.submit(make_request(0, [1, 2], sampling=sampling))
    with pytest.raises(RequestError):
        built.core.submit(make_request(2, [1, VOCAB]))
    assert built.core.has_work
    found = built.finish()
    assert found[1].reason == FinishReason.LENGTH
    assert found[1].token_ids == alone(other)[1:]  # the first one came above


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_t10_a_logprob_id_outside_the_vocabulary_is_refused(token: int) -> None:
    built = scripted_engine()
    with pytest.raises(RequestError, match="logprob_token_ids"):
        built.core.submit(make_request(0, [1, 2], sampling={"logprobs": 1, "logprob_token_ids": (token,)}))


def test_t11_an_id_is_free_again_only_after_its_end_and_an_abort_hits_its_own() -> None:
    built = scripted_engine()
    first, other = free_run(0, [1, 2, 3], 20), free_run(1, [1, 2, 4], 20)
    built.core.submit(first)
    built.core.submit(other)
    with pytest.raises(RequestError, match="in use"):
        built.core.submit(first)
    built.step()
    built.core.abort(0)
    ended = built.step()
    assert [o.request_id for o in ended if o.finish is not None] == [0]
    again = free_run(0, [5, 6, 7], 5)
    found = built.run(again)
    unharmed(found, again)
    assert found[1].token_ids == alone(other)[2:]


@pytest.mark.parametrize("depth", [1, 2])
def test_t13_three_seeded_choices_differ_repeat_and_end_apart(depth: int) -> None:
    def answers(**engine: Any) -> dict[int, Finished]:
        built = scripted_engine(depth=depth, **engine)
        call = make_request(0, [1, 2, 3, 4, 5, 6, 7, 8, 9], 12, temperature=1.0, seed=5, sampling={"n": 3, **ON})
        choices = expand_choices(call, [1, 2])
        first = reference(choices[0], 12, MODEL)
        # a stop id that only choice 0 draws early
        stop = next(t for k, t in enumerate(first) if t not in reference(choices[1], 12, MODEL)[: k + 4])
        choices = [
            msgspec.structs.replace(c, sampling=msgspec.structs.replace(c.sampling, stop_token_ids=(stop,)))
            for c in choices
        ]
        found = built.run(*choices)
        baseline(built)
        return found

    found = answers()
    texts = [found[i].token_ids for i in range(3)]
    assert len({tuple(t) for t in texts}) == 3
    assert len(texts[0]) < min(len(texts[1]), len(texts[2]))
    assert [f.token_ids for _, f in sorted(answers(max_tokens=20, prefix_caching=False).items())] == texts


def test_t13_choices_share_the_blocks_of_their_prompt() -> None:
    built = scripted_engine(block_size=4, max_rows=4)
    prompt = list(range(30))
    call = make_request(0, prompt, 4, temperature=1.0, sampling={"n": 4, **ON})
    for choice in expand_choices(call, [1, 2, 3]):
        built.core.submit(choice)
    most = 0
    while built.core.has_work:
        built.step()
        most = max(most, built.kv.stats().held)
    assert most < 2 * 8 + 4 * 2  # one prompt of 8 blocks and a little for each, not four prompts
    executor = built.executor
    assert isinstance(executor, ScriptedExecutor)
    assert executor.num_positions < 30 + 3 * 4 + 4 * 4  # the prompt was computed once


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_t14_the_same_seed_gives_the_same_text_at_any_concurrency(slots: int) -> None:
    built = scripted_engine(max_rows=slots, max_tokens=64)
    requests = [free_run(i, [1, 2, 3], temperature=1.0, seed=3) for i in range(8)]
    found = built.run(*requests)
    unharmed(found, *requests)
    assert len({tuple(f.token_ids) for f in found.values()}) == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_t17_a_resume_that_passes_the_prompt_in_chunks_draws_nothing_before_its_last_token(depth: int) -> None:
    # chunks of 3 cross the end of the prompt during the replay; the executor refuses an early draw itself
    built = scripted_engine(
        num_blocks=13,
        block_size=2,
        max_rows=2,
        prefill_chunk_tokens=3,
        depth=depth,
        watermark=0.0,
        prefix_caching=False,
        max_model_len=24,
    )
    requests = [free_run(i, [1, 2, 3, 4, i], 14) for i in range(2)]
    found = built.run(*requests)
    assert sum(f.last.usage.preemptions for f in found.values() if f.last.usage is not None) > 0
    unharmed(found, *requests)
    baseline(built)


def test_t18_drafts_on_a_state_that_cannot_be_rewound_are_refused_at_start() -> None:
    built = scripted_engine()
    from tests.fakes.builders import make_scheduler

    caps = msgspec.structs.replace(built.executor.caps, rewindable=False, spec_kinds=("host",))
    settings = msgspec.structs.replace(built.settings, num_draft_tokens=2)
    with pytest.raises(ConfigError, match="rewound"):
        make_scheduler(caps, settings, drafter=ToyDrafter(MODEL))


def test_t20_an_adapter_without_its_subsystem_is_refused_rather_than_ignored() -> None:
    with pytest.raises(RequestError, match="adapter"):
        scripted_engine().core.submit(make_request(0, [1, 2], adapter_digest=b"one"))


def test_t20_no_blocks_are_shared_across_salts() -> None:
    prompt = list(range(20))
    built = scripted_engine(block_size=4)
    for i, value in enumerate([b"one", b"two", b""]):
        built.run(free_run(i, prompt, 2, cache_salt=value))
        assert built.kv.stats().hit_tokens == 0
    built.run(free_run(3, prompt, 2, cache_salt=b"two"))  # the control: the same value does hit
    assert built.kv.stats().hit_tokens > 0


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("kind", ["id", "string"])
def test_t23_no_stop_of_any_kind_before_the_minimum(drafts: int, kind: str) -> None:
    options = {"spec_kinds": ("host",), "drafter": ToyDrafter(MODEL), "num_draft_tokens": drafts} if drafts else {}
    prompt = [4, 4, 2]
    text = alone(free_run(0, prompt, 12))
    early = text[1]
    stops: dict[str, Any] = (
        {"sampling": {"stop_token_ids": (early,), "min_tokens": 6}}
        if kind == "id"
        else {"stop": (BYTES[early].decode(),), "sampling": {"min_tokens": 6}}
    )
    found = scripted_engine(**options).run(free_run(0, prompt, 12, **stops))  # type: ignore[arg-type]
    assert len(found[0].token_ids) >= (6 if kind == "string" else 7)
    if kind == "id":
        assert early not in found[0].token_ids[:6]


@pytest.mark.parametrize("include", [False, True])
def test_t24_a_stop_string_inside_an_accepted_draft_cuts_everything_at_the_same_place(include: bool) -> None:
    prompt = [2, 7, 1, 8]
    drafter = ToyDrafter(MODEL, wrong_every=1000)  # nearly always right: several tokens per step
    tokens = alone(free_run(0, prompt, 16))
    pieces = [BYTES[t] for t in tokens]
    stop = (pieces[6] + pieces[7][:1]).decode()  # ends inside token 7
    found = scripted_engine(spec_kinds=("host",), drafter=drafter, num_draft_tokens=4).run(
        free_run(0, prompt, 16, stop=(stop,), sampling={"logprobs": 0, "include_stop_str_in_output": include})
    )[0]
    whole = b"".join(pieces)
    cut = whole.index(stop.encode()) + (len(stop) if include else 0)
    text = b"".join(BYTES[t] for t in found.token_ids)
    assert text[: len(text) - found.last.cut_bytes] == whole[:cut]
    assert found.token_ids == tokens[: len(found.token_ids)]
    logprobs = [p for o in found.outputs for p in o.logprobs or []]
    assert [p.token_id for p in logprobs] == found.token_ids
    assert found.last.usage is not None
    assert found.last.usage.output_tokens == len(found.token_ids)
    assert found.last.stop_reason == stop


PHASES = ("queue", "prefill", "decode", "last")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_t34_a_client_that_leaves_gives_its_blocks_back_within_a_step(phase: str, depth: int) -> None:
    built = scripted_engine(depth=depth, max_rows=1 if phase == "queue" else 4, prefill_chunk_tokens=4)
    stays = free_run(0, [1, 2], 30)
    leaves = free_run(1, list(range(20)), 5)
    built.core.submit(stays)
    built.step()
    built.core.submit(leaves)
    steps = {"queue": 1, "prefill": 2, "decode": 5 + depth, "last": 8 + depth}[phase]
    tokens = [o for _ in range(steps) for o in built.step() if o.request_id == 1]
    if phase == "decode":
        assert tokens
    built.core.abort(1)
    after = [o for o in built.step() if o.request_id == 1]
    if phase == "last" and tokens and tokens[-1].finish is not None:
        assert after == []  # it had ended by itself
    else:
        assert [o.finish for o in after] == [FinishReason.ABORT]
        assert after[0].usage is not None
    for _ in range(depth):
        assert all(o.request_id == 0 for o in built.step())
    held = built.kv.stats().held
    assert held <= 1 + (2 + 30) // 4  # the other one's alone
    built.finish()
    baseline(built)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("output", [1, 3, 4, 5])
def test_t37_a_finish_at_the_edge_of_a_block_frees_each_block_once(output: int, depth: int) -> None:
    built = scripted_engine(depth=depth, block_size=4, windows=(None, 6))
    model = ToyModel(VOCAB, (None, 6))
    requests = [free_run(i, [1, 2, 3, 4] * 2, output) for i in range(4)]  # 8 prompt tokens: an edge
    found = built.run(*requests)  # the ledger is checked after every step
    for request in requests:
        assert found[request.request_id].token_ids == reference(request, output, model)
    baseline(built)


def test_a_fault_of_one_row_ends_that_request_alone() -> None:
    for depth in (1, 2):
        built = scripted_engine(depth=depth, executor={"fault": lambda request_id, step: request_id == 1 and step >= 3})
        requests = [free_run(i, [1, 2, 3, i]) for i in range(3)]
        found = built.run(*requests)
        assert found[1].reason == FinishReason.ERROR
        assert "not numbers" in (found[1].last.error or "")
        unharmed(found, requests[0], requests[2])
        baseline(built)


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    built = scripted_engine(max_rows=1)
    runs = free_run(0, [1, 2], 50, deadline=0.010)
    waits = free_run(1, [3, 4], 50, queue_deadline=0.005)
    found = built.run(runs, waits)
    assert found[0].reason == found[1].reason == FinishReason.TIMEOUT
    assert 0 < len(found[0].token_ids) < 50
    assert found[1].token_ids == []
    baseline(built)


def test_equal_classes_never_preempt_each_other_in_turns() -> None:
    built = scripted_engine(num_blocks=16, block_size=4, max_rows=4, max_model_len=64, watermark=0.0)
    requests = [free_run(i, [i + 1] * 8, 24) for i in range(4)]
    found = built.run(*requests)
    unharmed(found, *requests)
    preemptions = [f.last.usage.preemptions for f in found.values() if f.last.usage is not None]
    assert preemptions[0] == 0  # the oldest is never a victim of its equals
    assert sum(preemptions) <= 8


def test_a_victim_keeps_its_age() -> None:
    built = scripted_engine(max_rows=1)
    old = free_run(0, [1, 2], 20, priority=1)
    built.core.submit(old)
    built.step()
    built.core.submit(free_run(1, [3, 4], 5, priority=1))
    built.core.submit(free_run(2, [5, 6], 5, priority=0))
    order = []
    while built.core.has_work:
        order += [o.request_id for o in built.step() if o.finish is not None]
    assert order == [2, 0, 1]


def test_seeds_and_prompts_are_values() -> None:
    ids = np.asarray([1, 2, 3], dtype=np.int32)
    request = make_request(0, ids)
    assert isinstance(request.sampling, SamplingParams)
    with pytest.raises(AttributeError):
        request.priority = 3  # type: ignore[misc]
