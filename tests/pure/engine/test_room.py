"""When blocks run out: who gives up, what it costs, and that it ends."""

from __future__ import annotations

import pytest
from tests.pure.engine.driver import Driver, admitted, request, rows_of

from paceline.contracts.decision import Reason
from paceline.contracts.request import FinishReason


def running(driver: Driver) -> list[int]:
    return sorted(driver.scheduler._life.running)


def test_the_youngest_of_the_class_gives_its_blocks_and_keeps_its_age() -> None:
    driver = Driver(num_blocks=6, block_size=4, max_rows=3, prefix_caching=False)
    driver.add(request(1, 7, 12), request(2, 7, 12))  # two blocks each, six hold 24 tokens
    while driver.scheduler.stats(0.0).num_preemptions == 0:
        driver.step()
    assert running(driver) == [1]
    state = driver.scheduler._life.open[2]
    assert (state.epoch, state.preemptions, state.computed, state.planned) == (1, 1, 0, 0)
    assert Reason.BLOCKS_FOR_DECODE in driver.reasons(2)
    driver.add(request(3, 7, 2))  # later than the victim, so behind it
    driver.run()
    order = [admit for plan in driver.plans for admit in admitted(plan)]
    assert order == [1, 2, 2, 3]
    assert driver.ids(1) == driver.ids(2) == list(range(12))


def test_what_was_computed_twice_is_waste_and_the_rest_adds_up() -> None:
    driver = Driver(num_blocks=6, block_size=4, prefix_caching=False)
    driver.add(request(1, 7, 12), request(2, 7, 12)).run()
    usage = driver.last(2).usage
    assert usage is not None
    assert usage.preemptions >= 1
    assert usage.wasted_tokens > 0
    assert usage.computed_tokens - usage.wasted_tokens == 7 + 12 - 1
    assert driver.scheduler.stats(0.0).wasted_tokens == usage.wasted_tokens


def test_the_lowest_class_goes_first_and_a_higher_one_is_never_taken() -> None:
    driver = Driver(num_blocks=9, block_size=4, prefix_caching=False)
    driver.add(request(1, 7, 12, priority=2), request(2, 7, 12, priority=0), request(3, 7, 12, priority=1))
    victims = []
    for _ in range(200):
        before = {i: s.preemptions for i, s in driver.scheduler._life.open.items()}
        driver.step()
        for i, state in driver.scheduler._life.open.items():
            if state.preemptions > before.get(i, 0):
                victims.append(i)
        if not driver.scheduler.has_work:
            break
    assert victims[0] == 1
    assert 2 not in victims
    assert all(driver.ids(i) == list(range(12)) for i in (1, 2, 3))


def test_one_in_need_may_itself_be_the_victim() -> None:
    driver = Driver(num_blocks=5, block_size=4, prefix_caching=False)
    driver.add(request(1, 7, 20), request(2, 8, 12))  # the second needs a block first
    while driver.scheduler.stats(0.0).num_preemptions == 0:
        driver.step()
    assert running(driver) == [1]
    driver.run()
    assert driver.last(1).usage.preemptions == 0  # type: ignore[union-attr]


def test_nobody_is_admitted_in_a_step_that_preempted_and_equal_classes_do_not_take_turns() -> None:
    driver = Driver(num_blocks=12, block_size=4, max_rows=4, prefix_caching=False)
    driver.add(*(request(i, 8, 20) for i in range(6)))
    preempted = 0
    for _ in range(400):
        plan = driver.plan()
        now_preempted = driver.scheduler.stats(0.0).num_preemptions
        if now_preempted > preempted:
            assert admitted(plan) == []
            preempted = now_preempted
        if not plan.is_empty:
            driver.apply()
        if not driver.scheduler.has_work:
            break
    assert not driver.scheduler.has_work
    assert preempted <= 6  # no ping-pong: the oldest always gets on
    assert all(driver.ids(i) == list(range(20)) for i in range(6))
    assert driver.last(0).usage.preemptions == 0  # type: ignore[union-attr]


def test_a_victim_in_flight_is_recomputed_and_its_result_dropped() -> None:
    driver = Driver(num_blocks=6, block_size=4, depth=2, prefix_caching=False)
    driver.add(request(1, 7, 12), request(2, 7, 12)).run()
    assert driver.scheduler.stats(0.0).num_preemptions >= 1
    assert driver.ids(1) == driver.ids(2) == list(range(12))
    usage = driver.last(2).usage
    assert usage is not None
    assert usage.computed_tokens - usage.wasted_tokens == 7 + 12 - 1


def test_asking_what_is_on_its_way_builds_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(block_size=4, depth=2, prefix_caching=False).add(request(1, 7, 12), request(2, 7, 12))
    driver.plan()
    driver.plan()
    driver.scheduler.abort(1, driver.now)
    on_its_way = driver.kv.stats().limbo
    assert on_its_way > 0
    monkeypatch.setattr(driver.kv, "stats", None)
    assert driver.scheduler._builder.room.num_coming() == on_its_way


@pytest.mark.parametrize("depth", [2, 3])
def test_while_blocks_are_on_their_way_back_nobody_else_has_to_go(depth: int) -> None:
    driver = Driver(num_blocks=12, block_size=4, max_rows=3, depth=depth, prefix_caching=False)
    driver.add(*(request(i, 7, 18) for i in range(3)))
    worst = 0
    while driver.scheduler.has_work:
        before = driver.scheduler.stats(0.0).num_preemptions
        driver.step()
        worst = max(worst, driver.scheduler.stats(0.0).num_preemptions - before)
    assert worst == 1
    assert all(driver.ids(i) == list(range(18)) for i in range(3))


def test_a_sequence_that_fills_the_whole_cache_ends_by_length() -> None:
    driver = Driver(num_blocks=4, block_size=4).add(request(1, 5, None), request(2, 5, 4)).run()
    assert driver.last(1).finish is FinishReason.LENGTH
    assert len(driver.ids(1)) == 16 - 5
    assert driver.ids(2) == [0, 1, 2, 3]


def test_preempted_in_the_middle_of_a_prompt_it_starts_again_and_draws_only_at_the_end() -> None:
    driver = Driver(num_blocks=9, block_size=4, max_rows=3, prefill_chunk_tokens=4, prefix_caching=False)
    driver.add(request(1, 20, 4, priority=1))
    driver.step()
    driver.step()
    driver.add(request(2, 20, 4, priority=0))
    plan = driver.step()
    assert (admitted(plan), plan.releases.tolist()) == ([2], [0])
    driver.run()
    assert driver.ids(1) == driver.ids(2) == [0, 1, 2, 3]
    chunks = [r for p in driver.plans for r in rows_of(p)]
    assert chunks.count((0, 0, 4)) + chunks.count((1, 0, 4)) >= 3  # twice for the one, once for the other
