"""When things happened to a request, as its last output tells."""

from __future__ import annotations

import math

import pytest
from tests.fakes.builders import Built, make_request, scripted_engine, simulated_engine
from tests.fakes.scripted_executor import ScriptedExecutor

from paceline.contracts.decision import Kind
from paceline.contracts.request import Request, RequestOutput
from paceline.contracts.slo import Timeline
from paceline.contracts.step import StepPlan, decode, encode
from paceline.cost.linear import LinearStepCost


def free_run(request_id: int, max_tokens: int, **fields: object) -> Request:
    prompt = [1, 2, 3, 4, 5, request_id]
    return make_request(request_id, prompt, max_tokens, sampling={"ignore_eos": True}, **fields)  # type: ignore[arg-type]


def timeline_of(outputs: list[RequestOutput], request_id: int) -> Timeline:
    (last,) = [o for o in outputs if o.request_id == request_id and o.finish is not None]
    assert last.timeline is not None
    return last.timeline


def test_each_number_of_a_finished_request_is_there_and_adds_up() -> None:
    built = scripted_engine(max_rows=1, executor={"device_ms": 10.0})
    first, second = free_run(0, 3), free_run(1, 4)
    found = built.run(first, second)
    timeline, usage = found[1].last.timeline, found[1].last.usage
    assert timeline is not None
    assert usage is not None
    # the first one ran for three steps of 10 ms, in the only row
    assert timeline.queue_s == pytest.approx(0.030)
    assert timeline.prefill_s == pytest.approx(0.010)
    assert timeline.first_token == pytest.approx(0.040)
    assert timeline.ttft_s == pytest.approx(timeline.queue_s + timeline.prefill_s)
    assert timeline.tpot_s == pytest.approx(0.010)
    assert timeline.end - timeline.arrival == pytest.approx(timeline.e2e_s) == pytest.approx(0.070)
    assert timeline.blocks_free == timeline.end
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (6, 4, 4)
    assert built.kv.stats().held == 0


def test_numbers_that_do_not_exist_are_nan_and_travel_so() -> None:
    built = scripted_engine(max_rows=1)
    built.core.submit(free_run(0, 8))
    built.core.submit(free_run(1, 8))
    built.step()
    built.core.abort(1)  # never admitted
    timeline = timeline_of(built.step(), 1)
    assert all(math.isnan(x) for x in (timeline.queue_s, timeline.prefill_s, timeline.ttft_s, timeline.first_token))
    assert timeline.blocks_free == timeline.end  # it held none
    there = decode(encode(Timeline(planned=0.0, arrival=0.0)), Timeline)
    assert math.isnan(there.blocks_free)


def abort_in_flight(built: Built, request_id: int) -> list[RequestOutput]:
    """One step; the request is ended while that computes."""
    executor = built.executor
    assert isinstance(executor, ScriptedExecutor)
    submit = executor.submit

    def submitting(plan: StepPlan) -> int:
        handle = submit(plan)
        built.core.abort(request_id)
        return handle

    executor.submit = submitting  # type: ignore[method-assign]
    outputs = built.core.step()
    executor.submit = submit  # type: ignore[method-assign]
    return outputs


def step_until_end(built: Built, request_id: int) -> Timeline:
    """As many steps as it takes; at most one of them may be in flight then."""
    for _ in range(100):
        outputs = built.step()
        if any(o.request_id == request_id and o.finish is not None for o in outputs):
            return timeline_of(outputs, request_id)
    raise AssertionError("no end")


def test_blocks_of_a_request_ended_during_its_step_are_free_when_that_ends() -> None:
    built = scripted_engine(executor={"device_ms": 10.0})
    built.core.submit(free_run(0, 50))
    built.step()
    timeline = timeline_of(abort_in_flight(built, 0), 0)
    assert timeline.end == pytest.approx(0.010)
    assert timeline.blocks_free == pytest.approx(0.020)
    assert built.kv.stats().limbo == 0


def test_with_two_steps_in_flight_the_time_is_known_when_the_last_of_them_ends() -> None:
    built = scripted_engine(depth=2, executor={"device_ms": 10.0})
    built.core.submit(free_run(0, 3))
    built.core.submit(free_run(1, 50))
    timeline = step_until_end(built, 0)
    # its length was known beforehand: the plan behind its last token had no row for it
    assert timeline.blocks_free == timeline.end
    aborted = built.clock.now()
    built.core.abort(1)
    limbo = built.kv.stats().limbo
    assert limbo > 0
    timeline = step_until_end(built, 1)
    built.finish()
    assert timeline.end == aborted
    assert timeline.blocks_free > aborted
    assert built.kv.stats().limbo == 0


def test_a_stop_in_flight_gives_a_later_time_for_the_blocks_than_the_end() -> None:
    """At depth 2 the row's next position is under way when its last token turns out to be a stop."""
    reference = scripted_engine().run(free_run(0, 8))[0].token_ids
    stop = next(t for k, t in enumerate(reference) if k >= 2 and t not in reference[:k])
    built = scripted_engine(depth=2, executor={"device_ms": 10.0})
    request = make_request(0, [1, 2, 3, 4, 5, 0], 30, sampling={"ignore_eos": True, "stop_token_ids": (stop,)})
    built.core.submit(request)
    timeline = step_until_end(built, 0)
    assert math.isnan(timeline.blocks_free)
    assert built.kv.stats().limbo > 0
    built.finish()
    assert timeline.blocks_free > timeline.end
    assert built.kv.stats().limbo == 0


def test_a_preempted_request_that_ends_waits_for_the_step_that_still_has_its_blocks() -> None:
    built = scripted_engine(depth=2, max_rows=1, executor={"device_ms": 10.0})
    built.core.submit(free_run(0, 50, priority=1))
    built.step()
    built.step()
    built.core.submit(free_run(1, 3, priority=0))
    plan = built.scheduler.plan

    def planning(now: float) -> StepPlan:
        made = plan(now)
        if any(d.kind is Kind.PREEMPT for d in built.scheduler.decisions.of_request(0)):
            assert built.kv.stats().limbo > 0  # the step before this one has them
            built.scheduler.abort(0, now)
            built.scheduler.plan = plan  # type: ignore[method-assign]
        return made

    built.scheduler.plan = planning  # type: ignore[method-assign]
    timeline = step_until_end(built, 0)
    assert timeline.blocks_free > timeline.end
    built.finish()


def test_prefill_time_saved_is_the_price_of_the_tokens_hit_at_first_admission() -> None:
    cost = LinearStepCost(fixed_ms=5.0, per_token_ms=0.25, per_row_ms=0.5, per_context_token_ms=0.001)
    built = simulated_engine(cost=cost, block_size=16)
    prompt = list(range(100, 150))
    built.run(make_request(0, prompt, 2))
    assert built.core.stats().saved_prefill_ms == 0.0
    built.run(make_request(1, prompt, 2))
    hit = 48  # three whole blocks of the 50 tokens
    assert built.core.stats().kv.hit_tokens == hit
    assert built.core.stats().saved_prefill_ms == pytest.approx(cost.prefill_ms(hit)) == pytest.approx(12.5)
    built.run(make_request(2, [1] * 20, 2))  # hits nothing
    built.run(make_request(3, [*prompt[:16], 7, 7, 7, 7], 2))
    assert built.core.stats().saved_prefill_ms == pytest.approx(cost.prefill_ms(hit) + cost.prefill_ms(16))


def test_what_a_preempted_request_finds_again_is_not_counted_as_saved() -> None:
    built = scripted_engine(max_rows=1, cost=LinearStepCost(per_token_ms=1.0, per_row_ms=0.0))
    built.core.submit(free_run(0, 20, priority=1))
    for _ in range(6):
        built.step()
    built.core.submit(make_request(1, [9, 9], 2, priority=0))
    found = built.finish()
    assert found[0].last.usage is not None
    assert found[0].last.usage.preemptions == 1
    assert built.kv.stats().saved_tokens > 0  # its own blocks, at its readmission
    assert built.core.stats().saved_prefill_ms == 0.0
