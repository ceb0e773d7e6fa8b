"""Jumped runs of decode steps are the steps: the same plans around them, times, tokens, blocks, and cache events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pure.engine.driver import EOS, Driver, request
from tests.pure.sim.kit import COST, Played, leave, replica_spec, submit

from paceline.contracts.request import Prompt, TokenPrompt
from paceline.contracts.slo import Slo
from paceline.contracts.step import StepPlan
from paceline.engine.horizon import DecodeRun
from paceline.sim.pace import Pace

law = settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=list(HealthCheck))
# COST makes a step of one row 8.8 ms, of four 10.4 ms
TARGETS = (Slo(), Slo(ttft_s=0.02, tpot_s=0.0095), Slo(ttft_s=0.2), Slo(tpot_s=0.011), Slo(e2e_s=0.25))
Action = tuple[float, Callable[[Played, float], None]]


def prompt(shared: int, own: int, name: int) -> Prompt:
    ids = [*range(1000, 1000 + shared), *range(5000 + 100 * name, 5000 + 100 * name + own)]
    return TokenPrompt(ids=np.asarray(ids, dtype=np.int32))


@st.composite
def scripts(draw: st.DrawFn) -> tuple[dict[str, Any], list[Action]]:
    """Settings that press on rows and blocks, and requests that come while others decode, some of which leave."""
    options: dict[str, Any] = {
        "num_blocks": draw(st.sampled_from([12, 20, 40])),
        "windows": draw(st.sampled_from([(None,), (None, 8)])),
        "prefix_caching": draw(st.booleans()),
        "max_num_seqs": draw(st.sampled_from([2, 4])),
        "max_num_batched_tokens": draw(st.sampled_from([8, 32])),
        "policy": draw(st.sampled_from(["fcfs", "priority", "fair"])),
        "batching": draw(st.sampled_from(["continuous", "continuous", "static"])),
        "max_wait_ms": draw(st.sampled_from([0.0, 0.0, 30.0])),
        "prefill_priority": draw(st.sampled_from(["decode_first", "prefill_first"])),
        "scheduling_mode": draw(st.sampled_from(["fixed", "auto"])),
        "max_model_len": 64,
    }
    if options["batching"] == "static" or options["prefill_priority"] == "prefill_first":
        options["scheduling_mode"] = "fixed"
    script: list[Action] = []
    for request_id in range(draw(st.integers(1, 7))):
        at = draw(st.floats(0.0, 0.9, allow_nan=False))
        more: dict[str, Any] = {
            "priority": draw(st.integers(0, 1)),
            "tenant": draw(st.sampled_from(["a", "b"])),
            "slo": draw(st.sampled_from(TARGETS)),
        }
        if draw(st.integers(0, 5)) == 0:
            more["deadline"] = at + draw(st.floats(0.05, 0.4))
        if draw(st.integers(0, 5)) == 0:
            more["leaves_after"] = draw(st.integers(1, 6))
        elif draw(st.integers(0, 5)) == 0:
            more["may_leave"] = True
            script.append((at + draw(st.floats(0.01, 0.5)), leave(request_id)))
        made = prompt(draw(st.sampled_from([0, 8])), draw(st.integers(1, 14)), request_id)
        script.append((at, submit(request_id, made, draw(st.integers(1, 20)), **more)))
    return options, script


def without_releases(plan: StepPlan) -> bytes:
    """A plan may tell later that a row has ended: steps in between were not planned one by one."""
    return msgspec.structs.replace(plan, releases=np.empty(0, np.int32)).digest()


def same_story(fast: Played, slow: Played) -> None:
    """What both tell of their requests, and the blocks they are left with."""
    assert fast.first_tokens == slow.first_tokens
    assert fast.left == slow.left
    assert fast.ends.keys() == slow.ends.keys()
    for request_id, end in fast.ends.items():
        other = slow.ends[request_id]
        assert end.finish == other.finish
        assert end.usage is not None
        assert other.usage is not None
        assert end.timeline is not None
        assert other.timeline is not None
        assert [n for _, n in end.timeline.chunks] == [n for _, n in other.timeline.chunks]
        assert [t for t, _ in end.timeline.chunks] == pytest.approx([t for t, _ in other.timeline.chunks], abs=1e-9)
        assert end.timeline.end == pytest.approx(other.timeline.end, abs=1e-9)
        assert end.timeline.admitted == pytest.approx(other.timeline.admitted, abs=1e-9, nan_ok=True)
        assert end.usage.kv_block_seconds == pytest.approx(other.usage.kv_block_seconds, abs=1e-8)
        assert msgspec.structs.replace(end.usage, kv_block_seconds=0.0) == msgspec.structs.replace(
            other.usage, kv_block_seconds=0.0
        )
    assert fast.replica.kv.stats() == slow.replica.kv.stats()


@law
@given(scripts())
def test_a_run_that_was_jumped_is_the_same_as_step_by_step(script: tuple[dict[str, Any], list[Action]]) -> None:
    options, actions = script
    spec = replica_spec(**options)
    slow = Played(spec, macro_steps=False).run(actions)
    fast = Played(spec, macro_steps=True, check=True).run(actions)
    assert fast.replica.num_steps == slow.replica.num_steps
    assert fast.replica.busy_s == pytest.approx(slow.replica.busy_s, abs=1e-9)
    for step, plan in fast.plans.items():
        assert without_releases(plan) == without_releases(slow.plans[step]), step
    same_story(fast, slow)
    assert len(fast.plans) <= len(slow.plans)


@settings(law, max_examples=25)
@given(scripts())
def test_plans_that_are_not_written_down_do_the_same(script: tuple[dict[str, Any], list[Action]]) -> None:
    options, actions = script
    spec = replica_spec(**options)
    slow = Played(spec, macro_steps=False).run(actions)
    fast = Played(spec, macro_steps=True, write_plans=False, check=True).run(actions)
    assert not fast.plans
    assert fast.replica.num_steps == slow.replica.num_steps
    assert fast.replica.busy_s == pytest.approx(slow.replica.busy_s, abs=1e-9)
    same_story(fast, slow)


def test_a_long_answer_alone_takes_two_events_beside_its_prompt() -> None:
    actions = [(0.0, submit(0, prompt(0, 10, 0), 200))]
    fast = Played(replica_spec(), macro_steps=True).run(actions)
    assert fast.replica.num_steps == 200
    assert fast.replica.num_events == 2  # the prompt, then all the rest
    assert len(fast.plans) == 1
    timeline = fast.ends[0].timeline
    assert timeline is not None
    assert timeline.num_tokens == 200
    gaps = [b - a for (a, _), (b, _) in zip(timeline.chunks, timeline.chunks[1:], strict=False)]
    growth = COST.per_context_token_ms / 1e3
    assert gaps[-1] - gaps[0] == pytest.approx(198 * growth, abs=1e-12)


def horizon(**options: Any) -> tuple[Driver, DecodeRun | None]:
    """Two requests, their prompts computed, at a step boundary."""
    driver = Driver(**options)
    driver.add(request(0, 5, 9, ignore_eos=True), request(1, 6, 12, ignore_eos=True), known=True)
    driver.step()
    return driver, driver.scheduler.horizon()


def test_the_horizon_ends_with_the_first_request_that_does() -> None:
    _, run = horizon()
    assert run is not None
    assert run.num_steps == 8  # the first token came with the prompt
    assert run.rows == (0, 1)
    assert (run.shape.num_rows, run.shape.context_tokens, run.shape.attention_pairs) == (2, 11, 13)


def test_there_is_no_run_while_somebody_might_be_admitted_or_has_more_to_go() -> None:
    driver, run = horizon()
    assert run is not None
    driver.add(request(2, 5, 4))
    assert driver.scheduler.horizon() is None  # the next plan admits it
    driver.plan()
    assert driver.scheduler.horizon() is None  # a plan is in flight


def test_a_run_ends_before_blocks_run_short() -> None:
    _, run = horizon(num_blocks=6, block_size=4)
    assert run is not None
    assert run.num_steps == 6  # two blocks are left, one for each; the seventh step would need a third


def test_tokens_that_are_not_known_beforehand_are_not_jumped() -> None:
    driver, run = horizon()
    assert run is not None
    driver.add(request(2, 5, 9))
    driver.step()
    assert driver.scheduler.horizon() is None


@pytest.mark.parametrize("fields", [{"logprobs": 1}, {"stop": ("x",)}, {"prompt_logprobs": 1}])
def test_an_answer_cannot_be_known_where_tokens_must_be_looked_at(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="looked at one by one"):
        Driver().add(request(0, 5, 9, **fields), known=True)


def test_engines_with_two_plans_in_flight_have_no_runs() -> None:
    driver = Driver(depth=2)
    driver.add(request(0, 5, 9, ignore_eos=True), known=True)
    driver.step()
    driver.step()
    assert driver.scheduler.horizon() is None


def test_a_token_that_would_end_its_request_early_does_not_pass() -> None:
    driver = Driver(script=lambda _, index: EOS if index == 2 else index)
    driver.add(request(0, 5, 9), known=True)
    driver.step()
    run = driver.scheduler.horizon()
    assert run is not None
    with pytest.raises(AssertionError, match="ends nothing"):
        driver.scheduler.apply_repeated(run, 3, Pace(COST, run.shape, run.num_steps, 0.0))
