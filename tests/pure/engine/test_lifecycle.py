"""The end, in every phase: blocks back to the baseline, one terminal output, one meter reading, a timeline."""

from __future__ import annotations

import math

import pytest
from tests.pure.engine.driver import Driver, request

from paceline.contracts.decision import Reason
from paceline.contracts.request import FinishReason
from paceline.contracts.slo import Outcome

SHARED = list(range(10, 40))


def ended(driver: Driver, request_id: int) -> bool:
    return any(o.finish is not None for o in driver.outputs if o.request_id == request_id)


def in_phase(phase: str, depth: int) -> Driver:
    """Request 1 in the phase asked for; request 2 beside it."""
    rows = 1 if phase == "queued" else 4
    driver = Driver(depth=depth, max_rows=rows, prefill_chunk_tokens=8)
    if phase == "queued":
        driver.add(request(2, 5, 12), request(1, 5, 12))
        driver.step()
    elif phase == "parked":
        driver.add(request(2, SHARED, 12), request(1, SHARED, 12))
        driver.step()
        assert driver.scheduler._queue.num_parked == 1
    elif phase == "prefill":
        driver.add(request(1, 40, 12), request(2, 5, 12))
        driver.step()
    elif phase == "decode":
        driver.add(request(1, 5, 12), request(2, 5, 12))
        for _ in range(4):
            driver.step()
    elif phase == "last step":
        driver.add(request(1, 5, 2), request(2, 5, 12))
        driver.step()
        driver.plan()  # its last token is under way
    elif phase == "preempted":
        driver = Driver(depth=depth, max_rows=1)
        driver.add(request(1, 5, 12, priority=1))
        driver.step()
        driver.add(request(2, 5, 12, priority=0))
        driver.step()
        assert driver.scheduler._life.open[1].preemptions == 1
    return driver


PHASES = ["queued", "parked", "prefill", "decode", "last step", "preempted"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_t34_an_abort_is_valid_in_every_phase_and_leaves_nothing(phase: str, depth: int) -> None:
    driver = in_phase(phase, depth)
    driver.drain()
    tokens = len(driver.ids(1))
    driver.scheduler.abort(1, driver.now)
    driver.scheduler.abort(1, driver.now)  # again, and a stranger: ignored
    driver.scheduler.abort(99, driver.now)
    (output,) = driver.drain()
    assert (output.request_id, output.finish, output.token_ids) == (1, FinishReason.ABORT, [])
    assert output.usage is not None
    assert output.timeline is not None
    assert output.timeline.outcome is Outcome.CLIENT_CANCEL
    driver.run()
    assert len(driver.ids(1)) == tokens
    assert driver.ids(2) == list(range(12))
    assert driver.held_blocks() == 0
    assert [o.finish for o in driver.outputs if o.request_id == 1 and o.finish] == [FinishReason.ABORT]


@pytest.mark.parametrize("phase", PHASES)
def test_all_are_aborted_in_the_order_in_which_they_came(phase: str) -> None:
    driver = in_phase(phase, 1)
    driver.drain()
    there = list(driver.scheduler._life.open)
    driver.scheduler.abort_all(driver.now)
    assert [(o.request_id, o.finish) for o in driver.drain()] == [(i, FinishReason.ABORT) for i in there]
    driver.scheduler.abort_all(driver.now)
    assert driver.drain() == []
    assert not driver.scheduler.has_work
    driver.run()
    assert driver.held_blocks() == 0


def test_whoever_comes_gets_the_lowest_row_that_is_free() -> None:
    driver = Driver(max_rows=4).add(*(request(i, 4, 20) for i in range(3)))
    driver.step()
    rows = {state.request_id: state.row for state in driver.scheduler._life.running.values()}
    assert rows == {0: 0, 1: 1, 2: 2}
    driver.scheduler.abort(1, driver.now)
    driver.scheduler.abort(0, driver.now)
    driver.add(*(request(i, 4, 20) for i in (3, 4, 5)))
    driver.step()
    driver.step()
    rows = {state.request_id: state.row for state in driver.scheduler._life.running.values()}
    assert rows == {2: 2, 3: 0, 4: 1, 5: 3}
    assert driver.scheduler._life.free_rows == []


def test_t34_after_an_abort_the_blocks_are_back_within_one_step() -> None:
    driver = Driver(depth=2).add(request(1, 20, 12))
    driver.plan()
    driver.plan()
    driver.scheduler.abort(1, driver.now)
    assert driver.kv.stats().limbo == 6
    driver.apply()
    driver.apply()
    assert driver.held_blocks() == 0


def test_what_an_aborted_request_had_in_flight_is_waste() -> None:
    driver = Driver(depth=2).add(request(1, 5, 12))
    driver.plan()
    driver.plan()
    driver.scheduler.abort(1, driver.now)
    (output,) = driver.drain()
    assert output.usage is not None
    assert (output.usage.computed_tokens, output.usage.wasted_tokens) == (6, 6)
    driver.run()
    stats = driver.scheduler.stats(0.0)
    assert (stats.computed_tokens, stats.wasted_tokens, stats.output_tokens) == (6, 6, 0)


@pytest.mark.parametrize("phase", PHASES)
def test_a_deadline_ends_a_request_wherever_it_is(phase: str) -> None:
    driver = in_phase(phase, 1)
    late = driver.scheduler._life.open[1]
    driver.scheduler._deadlines._push(driver.now + 0.5, late, Reason.DEADLINE)
    assert driver.scheduler.wake_time() == pytest.approx(driver.now + 0.5)
    driver.now += 0.5
    driver.scheduler.expire(driver.now)
    driver.drain()
    assert driver.last(1).finish is FinishReason.TIMEOUT
    assert driver.last(1).error == "timed out: deadline"
    driver.run()
    assert driver.ids(2) == list(range(12))
    assert driver.held_blocks() == 0


def test_a_queue_timeout_ends_only_what_was_never_admitted() -> None:
    driver = Driver(max_rows=1)
    driver.add(request(1, 5, 20, queue_deadline=0.01), request(2, 5, 20, queue_deadline=0.01))
    driver.run()
    assert len(driver.ids(1)) == 20
    assert driver.last(2).finish is FinishReason.TIMEOUT
    assert driver.last(2).error == "timed out: queue_timeout"
    assert driver.ids(2) == []


def test_tokens_that_were_withheld_come_with_a_timeout_and_not_with_an_abort() -> None:
    for deadline, expected in ((0.0045, b"aEN"), (None, b"a")):
        driver = Driver(script=lambda _, k: b"aENDx"[k]).add(request(1, 3, 9, stop=("ENDE",), deadline=deadline))
        for _ in range(3):
            driver.step()
        if deadline is None:
            driver.scheduler.abort(1, driver.now)
        driver.step(0.01)
        assert bytes(driver.ids(1)) == expected
        assert ended(driver, 1)


def test_usage_and_timeline_come_once_with_the_end() -> None:
    driver = Driver()
    driver.now = 1.0
    driver.add(request(1, 6, 3, arrival=0.9)).run()
    *before, last = [o for o in driver.outputs if o.request_id == 1]
    assert all(o.usage is None and o.timeline is None for o in before)
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.output_tokens, last.usage.computed_tokens) == (6, 3, 8)
    timeline = last.timeline
    assert timeline is not None
    assert (timeline.planned, timeline.arrival) == (0.9, 1.0)
    assert timeline.admitted == pytest.approx(1.001)
    assert [n for _, n in timeline.chunks] == [1, 1, 1]
    assert timeline.ttft_s == pytest.approx(0.101)
    assert timeline.end == pytest.approx(1.003)
    assert timeline.outcome is Outcome.OK


def test_one_that_never_ran_has_no_first_token_time() -> None:
    driver = Driver(max_rows=1).add(request(1, 3), request(2, 3))
    driver.step()
    driver.scheduler.abort(2, driver.now)
    driver.drain()
    timeline = driver.last(2).timeline
    assert timeline is not None
    assert math.isnan(timeline.ttft_s)
    assert math.isnan(timeline.queue_s)
    assert driver.last(2).usage.cached_tokens == 0  # type: ignore[union-attr]


def test_cached_tokens_are_those_of_the_first_admission() -> None:
    driver = Driver(max_rows=1)
    driver.add(request(1, SHARED, 2)).run()
    driver.add(request(2, SHARED, 12, priority=1))
    for _ in range(3):
        driver.step()
    driver.add(request(3, 3, 2, priority=0)).run()
    usage = driver.last(2).usage
    assert usage is not None
    assert usage.preemptions == 1
    assert usage.cached_tokens == 28
    assert driver.kv.stats().query_tokens == 30 + 30 + 3  # the resume is not asked for again


def test_block_seconds_are_blocks_times_the_time_they_were_held() -> None:
    driver = Driver(block_size=4).add(request(1, 4, 4))
    for _ in range(4):
        driver.step(1.0)
    driver.run()
    # planned at t = 1 with one block, a second from t = 2 on; ended at t = 4
    assert driver.last(1).usage.kv_block_seconds == pytest.approx(1 * 1 + 2 * 2)  # type: ignore[union-attr]


def test_tokens_of_a_former_life_count_for_limits_and_not_for_billing() -> None:
    driver = Driver().add(request(1, 5, 6, prior_output=(0, 1, 2))).run()
    assert driver.ids(1) == [3, 4, 5]
    assert driver.last(1).usage.output_tokens == 3  # type: ignore[union-attr]
    assert driver.plans[0].admits[0].num_prompt == 5
    assert len(driver.plans[0].admits[0].token_ids) == 8
