"""The scheduler as its loop sees it: numbers, bounds on work per step, resets, and everything at once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.pure.engine.driver import Driver, admitted, request

from paceline.contracts.request import expand_choices


def test_an_idle_scheduler_plans_nothing_and_has_no_work() -> None:
    driver = Driver()
    assert driver.plan().is_empty
    assert not driver.scheduler.has_work
    assert driver.scheduler.wake_time() is None
    assert driver.scheduler.stats(3.0).time == 3.0


def test_steps_are_numbered_without_gaps_and_empty_plans_take_no_number() -> None:
    driver = Driver().add(request(1, 3, 2)).run()
    driver.plan()
    driver.add(request(2, 3, 2)).run()
    assert [p.step for p in driver.plans] == [0, 1, 2, 3]


def test_counts_are_those_of_now() -> None:
    driver = Driver(max_rows=2, depth=2).add(*(request(i, 5, 4) for i in range(5)))
    driver.plan()
    scheduler = driver.scheduler
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.in_flight, scheduler.has_work) == (2, 3, 1, True)
    stats = scheduler.stats(0.0)
    assert (stats.num_running, stats.num_waiting, stats.waiting_tokens, stats.step) == (2, 3, 15, 1)
    driver.run()
    stats = scheduler.stats(0.0)
    assert (stats.num_finished, stats.output_tokens, stats.num_running) == (5, 20, 0)
    assert stats.computed_tokens == 5 * 8


def test_more_plans_than_may_be_in_flight_are_a_bug_of_the_caller() -> None:
    driver = Driver(depth=1).add(request(1, 3))
    driver.plan()
    with pytest.raises(AssertionError, match="in flight"):
        driver.plan()


def test_a_step_touches_none_of_the_waiting_but_the_head() -> None:
    """Not timed: the waiting behind the head are made to fail when anything is read of them."""
    driver = Driver(max_rows=2).add(*(request(i, 5, 40) for i in range(2)))
    driver.step()
    driver.add(*(request(i, 5, 40) for i in range(2, 200)))
    heap = driver.scheduler._queue._classes[0].queues[""]._behind

    class Poison:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} of a request in the queue was read")

    kept = list(heap)
    heap[1:] = [(*entry[:-1], Poison()) for entry in heap[1:]]  # type: ignore[misc]
    for _ in range(20):
        assert driver.step().num_rows == 2
    heap[:] = kept
    driver.scheduler.abort(150, driver.now)
    driver.run(2000 * 10)
    assert all(len(driver.ids(i)) == 40 for i in range(200) if i != 150)


def test_forgetting_the_prefixes_keeps_the_running_alive() -> None:
    driver = Driver().add(request(1, 20, 6))
    driver.step()
    assert driver.scheduler.reset_prefix_cache(driver.now) is False
    driver.add(request(2, request(1, 20).prompt.ids.tolist(), 6)).run()
    assert driver.last(2).usage.cached_tokens == 0  # type: ignore[union-attr]
    assert driver.ids(1) == list(range(6))
    assert driver.scheduler.reset_prefix_cache(driver.now) is True


def test_explaining_says_nothing_more_about_the_first_in_line_the_running_and_strangers() -> None:
    driver = Driver(max_rows=1).add(request(1, 5), request(2, 5))
    driver.step()
    decisions = driver.scheduler.decisions
    for request_id in (1, 2, 99):
        assert driver.scheduler.explain(request_id) == decisions.of_request(request_id)


def traffic(seed: int, driver: Driver) -> None:
    """Random calls, aborts and deadlines until all is over."""
    rng = random.Random(seed)
    next_id = 0
    prefixes = [[], list(range(10, 22)), list(range(30, 43))]
    for _ in range(25):
        for _ in range(rng.randrange(3)):
            prompt = [*rng.choice(prefixes), *(rng.randrange(200) for _ in range(rng.randrange(1, 9)))]
            n = rng.choice([1, 1, 1, 3])
            call = request(
                next_id,
                prompt,
                rng.randrange(1, 14),
                n=n,
                priority=rng.randrange(3),
                tenant=rng.choice("ab"),
                stop=rng.choice([(), ("\x03\x04",)]),
                deadline=rng.choice([None, None, driver.now + 0.02]),
                prompt_logprobs=rng.choice([None, None, 0]),
            )
            driver.add(*expand_choices(call, range(next_id + 1, next_id + n)))
            next_id += n
        if rng.random() < 0.2 and next_id:
            driver.scheduler.abort(rng.randrange(next_id), driver.now)
        driver.step()
    driver.run(3000)
    for request_id in range(next_id):
        assert [o.finish is not None for o in driver.outputs if o.request_id == request_id][-1:] == [True]
        finish = driver.last(request_id)
        usage = finish.usage
        assert usage is not None
        assert usage.wasted_tokens <= usage.computed_tokens
        assert driver.ids(request_id) == list(range(len(driver.ids(request_id))))


@pytest.mark.parametrize("seed", range(12))
def test_anything_at_once_ends_and_leaves_an_empty_ledger(seed: int) -> None:
    rng = random.Random(1000 + seed)
    windows: tuple[int | None, ...] = rng.choice([(None,), (None, 6), (7,)])
    driver = Driver(
        num_blocks=len(windows) * rng.choice([10, 14, 40]),
        block_size=4,
        windows=windows,
        depth=rng.choice([1, 2, 3]),
        max_rows=rng.choice([1, 3, 6]),
        max_model_len=40,
        policy=rng.choice(["fcfs", "priority", "fair"]),
        prefill_priority=rng.choice(["decode_first", "prefill_first"]),
        batching=rng.choice(["continuous", "continuous", "static"]),
        prefill_chunk_tokens=rng.choice([None, 1, 5]),
        max_num_batched_tokens=rng.choice([6, 16]),
        max_wait_ms=rng.choice([0.0, 3.0]),
        watermark=rng.choice([0.0, 0.2]),
    )
    traffic(seed, driver)
    assert driver.held_blocks() == 0
    assert driver.scheduler.num_running == driver.scheduler.num_waiting == 0
    life = driver.scheduler._life
    assert sorted(life.free_rows) == list(range(driver.settings.max_num_seqs))
    assert life.running_classes == {}
    assert driver.scheduler._queue.num_tokens == driver.scheduler._queue.num_parked == 0


def test_admission_order_is_arrival_even_when_ids_are_not() -> None:
    driver = Driver(max_rows=1)
    driver.add(request(5, 3, 1, arrival=0.3), request(6, 3, 1, arrival=0.1), request(4, 3, 1, arrival=0.2)).run()
    assert [i for p in driver.plans for i in admitted(p)] == [6, 4, 5]
