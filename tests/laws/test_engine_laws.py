"""The laws of the engine, over random traffic on the toy model.

The scripted executor reads its KV through the block tables of encoded plans, with free blocks poisoned after each
step, so a wrong block anywhere changes the text. Each law is checked on engines of random shape: several KV groups, one
or two plans in flight, host or device drafts, pools far smaller than the traffic.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.fakes.builders import EOS, VOCAB, make_request, make_scheduler, reference
from tests.fakes.byte_tokenizer import letter_bytes
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.scripts import MAX_MODEL_LEN, Run, Script, run_script, scripts
from tests.fakes.stop_oracle import Ending, apply_stop_rules
from tests.fakes.toy_model import ToyDrafter, ToyModel

from paceline.contracts.kv import CacheDomain
from paceline.contracts.request import FinishReason, Request, block_keys
from paceline.contracts.step import StepPlan, decode
from paceline.engine.journal import Planned, StepJournal, read_events, replay

TOKEN_BYTES = letter_bytes(VOCAB, (EOS,))
# the same examples at every run; the long test draws new ones
slow = settings(deadline=None, max_examples=120, derandomize=True, suppress_health_check=list(HealthCheck))
quick = settings(slow, max_examples=50)
fresh = settings(deadline=None, max_examples=3000, suppress_health_check=list(HealthCheck))


def serial(request: Request, windows: tuple[int | None, ...], longest: int) -> tuple[Ending, list[int]]:
    """The request alone, everything recomputed for every token: stop rules on the finished text, and all drawn."""
    sampling = request.sampling
    limit = room = longest - request.num_prompt - len(request.prior_output)
    if sampling.max_tokens is not None:
        limit = min(room, sampling.max_tokens - len(request.prior_output))
    tokens = reference(request, limit, ToyModel(VOCAB, windows))
    return apply_stop_rules(request, tokens, TOKEN_BYTES, (EOS,), limit), tokens


def check_serial_equivalence(script: Script, run: Run) -> int:
    """Compare everything that ended by itself; what was cut short must be a prefix. Returns how many were whole."""
    whole = 0
    kv = run.built.kv
    longest = max(n for n in range(MAX_MODEL_LEN + 1) if n == 0 or not kv.never_fits(n))
    for request in script.requests:
        if request.request_id in run.refused:
            continue
        done = run.finished[request.request_id]
        note(f"request {request.request_id}: {done.reason} {done.token_ids}")
        expected, drawn = serial(request, script.engine["windows"], longest)
        if done.reason in (FinishReason.ABORT, FinishReason.TIMEOUT):  # shows tokens that a stop string would yet drop
            assert done.token_ids == drawn[: len(done.token_ids)]
            continue
        whole += 1
        assert done.token_ids == expected.token_ids
        assert done.reason == expected.finish
        assert done.last.stop_reason == expected.stop_reason
        text = b"".join(TOKEN_BYTES[t] for t in (*request.prior_output, *done.token_ids))
        assert text[: len(text) - done.last.cut_bytes] == expected.text
        if request.sampling.logprobs is not None:
            logprobs = [p for o in done.outputs for p in (o.logprobs or [])]
            assert [p.token_id for p in logprobs] == done.token_ids
    return whole


@slow
@given(scripts())
def test_law_1_any_schedule_gives_the_text_of_one_request_at_a_time(script: Script) -> None:
    check_serial_equivalence(script, run_script(script))


@pytest.mark.long
@fresh
@given(scripts())
def test_law_1_holds_for_new_examples(script: Script) -> None:
    check_serial_equivalence(script, run_script(script))


@quick
@given(scripts())
def test_laws_2_and_3_the_ledger_balances_and_everything_ends(script: Script) -> None:
    run = run_script(script)  # checks the ledger after every step, and that there is an end
    assert set(run.finished) | run.refused == {r.request_id for r in script.requests}
    for done in run.finished.values():
        assert done.last.finish is not None
    stats = run.built.kv.stats()
    assert stats.held == stats.limbo == stats.reserved == 0
    assert stats.free + stats.cached == stats.total
    built = run.built
    assert built.scheduler.num_running == built.scheduler.num_waiting == 0
    built.core.reset_prefix_cache()
    assert built.kv.stats().free == stats.total


@quick
@given(scripts(disturb=False))
def test_law_6_positions_served_are_counted_once(script: Script) -> None:
    """A request that ended by itself was served prompt + prior output + output - 1 positions (the last token is never
    fed). Each was computed once and kept, hit in the cache, or restored; what else was computed is waste."""
    run = run_script(script)
    computed = 0
    for request in script.requests:
        if request.request_id in run.refused:
            continue
        done = run.finished[request.request_id]
        usage = done.last.usage
        assert usage is not None
        assert [o.usage is not None for o in done.outputs] == [False] * (len(done.outputs) - 1) + [True]
        computed += usage.computed_tokens
        assert 0 <= usage.wasted_tokens <= usage.computed_tokens
        if done.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            continue
        kept = usage.computed_tokens - usage.wasted_tokens
        served = request.num_prompt + len(request.prior_output) + usage.output_tokens - 1
        note(f"request {request.request_id}: {usage}")
        if script.engine["prefix_caching"] and (usage.preemptions or request.prior_output):
            # a resume may hit blocks that others computed meanwhile, and a hit of prior output is no prompt token
            assert kept + usage.cached_tokens + usage.restored_tokens <= served
        else:
            assert kept + usage.cached_tokens + usage.restored_tokens == served
        assert usage.prompt_tokens == request.num_prompt
        assert usage.output_tokens >= len(done.token_ids)
    executor = run.built.executor
    assert isinstance(executor, ScriptedExecutor)
    assert computed == executor.num_positions


@quick
@given(scripts())
def test_law_5_a_replay_of_the_journal_gives_the_same_plans(script: Script) -> None:
    journal = StepJournal()
    run = run_script(script, journal)
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


@quick
@given(scripts(), st.booleans())
def test_law_4_nothing_is_hit_across_salts(script: Script, alike: bool) -> None:
    """The same prompt over and over, each time with another salt: no hit. With the same: hits (the control)."""
    prompt = [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    room = {"num_blocks": 80, "prefix_caching": True, "max_wait_ms": 0.0}
    requests = [make_request(i, prompt, 3, cache_salt=b"same" if alike else b"%d" % i) for i in range(4)]
    run = run_script(Script({**script.engine, **room}, script.drafts, {8 * i: [r] for i, r in enumerate(requests)}))
    cached = [run.finished[i].last.usage for i in range(4)]
    hits = [usage.cached_tokens for usage in cached if usage is not None]
    assert sum(hits) == run.built.kv.stats().hit_tokens
    assert hits == [0, 0, 0, 0] if not alike else sum(hits) > 0


def test_law_4_each_part_of_the_domain_changes_every_key() -> None:
    ids = np.arange(8, dtype=np.int32)
    domains = [
        CacheDomain(model_revision=revision, kv_dtype=dtype, adapter_digest=adapter, salt=salt)
        for revision in ("r1", "r1x", "r")
        for dtype in ("float32", "int8", "xfloat32")
        for adapter in (b"", b"a")
        for salt in (b"", b"a")
    ]
    keys = [key for domain in domains for key in block_keys(ids, (), domain, 4)]
    assert len(set(keys)) == len(keys)
    assert all(len(key) * 8 >= 128 for key in keys)


@quick
@given(scripts())
def test_plans_are_sound_by_themselves(script: Script) -> None:
    """What a plan says can be checked without the scheduler: budget, order, one row per request, no null block."""
    run = run_script(script, executor={"keep_plans": True})
    executor = run.built.executor
    assert isinstance(executor, ScriptedExecutor)
    budget = run.built.settings.max_num_batched_tokens
    for data in executor.plans:
        plan = decode(data, StepPlan)
        assert len(set(plan.row.tolist())) == len(plan.row)
        assert (plan.count >= 1).all()
        assert (plan.new_block_id > 0).all()
        assert int(plan.num_draft.sum()) == len(plan.draft_ids)
        assert plan.num_tokens <= run.built.executor.caps.max_tokens
        decode_tokens = int((plan.num_draft + 1)[plan.sample > 0].sum())
        assert plan.num_tokens <= max(budget, decode_tokens + run.built.settings.min_prefill_tokens)
        assert math.isfinite(plan.est_ms)
