"""Who is admitted, who waits and for what: rows, blocks, tokens, a shared prefix, the first choice of the call."""

from __future__ import annotations

import msgspec
import pytest
from tests.pure.engine.driver import Driver, PerToken, admitted, request, rows_of

from paceline.contracts.decision import Kind, Reason
from paceline.contracts.request import expand_choices
from paceline.errors import StallError

LONG = list(range(10, 50))  # a prompt of 40 tokens that others share


def test_t3_all_that_fits_an_idle_engine_is_scheduled_at_once() -> None:
    driver = Driver(max_rows=4).add(*(request(i, 5) for i in range(4)))
    assert admitted(driver.step()) == [0, 1, 2, 3]


def test_a_long_prompt_takes_the_budget_step_by_step_and_draws_only_at_its_end() -> None:
    driver = Driver(max_num_batched_tokens=16).add(request(1, 40, 2))
    plans = [driver.step() for _ in range(3)]
    assert [rows_of(p) for p in plans] == [[(0, 0, 16)], [(0, 16, 16)], [(0, 32, 8)]]
    assert [p.sample.tolist() for p in plans] == [[0], [0], [1]]
    assert driver.reasons(1)[:2] == ["cold", "chunked"]


def test_a_chunk_cap_leaves_the_rest_of_the_budget_to_the_next_in_order() -> None:
    driver = Driver(max_num_batched_tokens=16, prefill_chunk_tokens=6).add(request(1, 40, 2), request(2, 8, 2))
    assert rows_of(driver.step()) == [(0, 0, 6), (1, 0, 6)]
    assert rows_of(driver.step()) == [(0, 6, 6), (1, 6, 2)]


def test_the_head_of_the_line_says_what_it_lacks_and_others_are_behind_it() -> None:
    driver = Driver(max_rows=1).add(request(1, 5), request(2, 5), request(3, 5), request(4, 5))
    driver.step()
    assert driver.reasons(2) == ["no_rows"]
    assert driver.reasons(4) == []
    (derived,) = driver.scheduler.explain(4)
    assert (derived.kind, derived.reason, derived.other) == (Kind.WAIT, Reason.NO_ROWS, 2)
    assert derived.numbers == {"behind": 2.0}
    for _ in range(3):
        driver.step()
    assert driver.reasons(2) == ["no_rows"]  # recorded on change, not at every step


def test_tokens_spent_is_a_reason_too() -> None:
    driver = Driver(max_num_batched_tokens=8).add(request(1, 8), request(2, 5))
    driver.step()
    assert driver.reasons(2) == ["no_budget"]


def test_a_request_is_let_in_only_when_its_whole_prompt_fits_with_headroom() -> None:
    driver = Driver(num_blocks=10, block_size=4, prefix_caching=False)
    driver.add(request(1, 16, 8), request(2, 22, 2), request(3, 2, 2))
    driver.step()
    assert driver.reasons(2) == ["no_blocks"]  # six blocks are free, six and one are needed
    assert driver.scheduler.num_running == 1  # the small one does not pass it
    numbers = driver.scheduler.decisions.of_request(2)[0].numbers
    assert numbers == {"missing": 1.0, "available": 6.0}
    driver.run()
    assert [i for p in driver.plans for i in admitted(p)] == [1, 2, 3]


def test_the_watermark_is_kept_free_while_others_run_and_not_when_nobody_does() -> None:
    driver = Driver(num_blocks=20, block_size=4, watermark=0.5, prefix_caching=False)
    driver.add(request(1, 60, 2))
    assert admitted(driver.step()) == [1]
    driver.run()
    driver.add(request(2, 16, 12), request(3, 25, 2))
    driver.step()
    assert driver.scheduler.num_running == 1
    assert driver.reasons(3) == ["no_blocks"]  # 16 are free; 7, 10 of watermark and 1 of headroom are not
    driver.run()
    assert len(driver.ids(3)) == 2


def test_a_blocked_long_prompt_is_not_quoted_at_every_step() -> None:
    driver = Driver(num_blocks=16, block_size=4, prefix_caching=False)
    driver.add(request(1, 30, 20), request(2, 40, 2))
    driver.step()
    quotes = []
    quote = driver.kv.quote
    driver.kv.quote = lambda *a, **k: quotes.append(a[0]) or quote(*a, **k)  # type: ignore[method-assign,func-returns-value]
    for _ in range(12):
        driver.step()
    assert len(quotes) <= 1
    driver.run()
    assert len(driver.ids(2)) == 2


# a prefix that is being computed


def test_requests_that_arrive_together_share_one_prefill() -> None:
    driver = Driver(max_num_batched_tokens=64, num_blocks=100)
    driver.add(*(request(i, [*LONG, 60 + i], 2) for i in range(4)))
    assert admitted(driver.step()) == [0]
    assert driver.reasons(1) == ["prefix_in_flight"]
    assert driver.scheduler.decisions.of_request(1)[0].other == 0
    assert driver.scheduler.num_waiting == 3
    second = driver.step()
    assert admitted(second) == [1, 2, 3]
    assert second.count.tolist()[1:] == [1, 1, 1]  # 40 of 41 tokens are shared
    driver.run()
    assert driver.last(3).usage.cached_tokens == 40  # type: ignore[union-attr]
    assert driver.scheduler.stats(0.0).computed_tokens == 41 + 3 * 1 + 4 * 1


def test_waiting_is_not_taken_when_a_step_costs_more_than_it_saves() -> None:
    driver = Driver(cost=PerToken(fixed_ms=100.0)).add(request(1, LONG, 2), request(2, [*LONG, 1], 2))
    assert admitted(driver.step()) == [1, 2]


def test_waiting_can_be_switched_off() -> None:
    driver = Driver(wait_for_prefix=False, max_num_batched_tokens=64, max_tokens=128, num_blocks=100)
    driver.add(request(1, LONG[:20], 2), request(2, [*LONG[:20], 1], 2))
    assert admitted(driver.step()) == [1, 2]


def test_when_the_owner_goes_the_waiting_go_on_without_it() -> None:
    driver = Driver(prefill_chunk_tokens=16).add(request(1, LONG, 2), request(2, [*LONG, 1], 2))
    driver.step()
    assert driver.scheduler._queue.num_parked == 1
    driver.scheduler.abort(1, driver.now)
    assert admitted(driver.step()) == [2]
    driver.run()
    assert driver.ids(2) == [0, 1]


def test_an_unrelated_request_passes_those_that_wait_for_a_prefix() -> None:
    driver = Driver(prefill_chunk_tokens=16)
    driver.add(request(1, LONG, 2), request(2, [*LONG, 1], 2), request(3, 5, 2))
    assert admitted(driver.step()) == [1, 3]


def test_one_step_parks_no_more_than_there_are_rows() -> None:
    driver = Driver(max_rows=4, prefill_chunk_tokens=8, num_blocks=200)
    driver.add(*(request(i, [*LONG, 1], 2) for i in range(40)))
    driver.step()
    assert driver.scheduler._queue.num_parked == 4
    driver.run()
    assert all(driver.ids(i) == [0, 1] for i in range(40))


# n > 1


def test_t13_choices_share_the_prompt_of_the_first_and_copy_its_last_partial_block() -> None:
    driver = Driver(block_size=4, windows=(None,))
    driver.add(*expand_choices(request(1, 10, 4, n=3, seed=7), [2, 3]))
    assert admitted(driver.step()) == [1]
    assert driver.reasons(2) == ["leader_prefill"]
    plan = driver.step()
    assert admitted(plan) == [2, 3]
    assert rows_of(plan) == [(0, 10, 1), (1, 9, 1), (2, 9, 1)]  # only the last prompt token again
    assert len(plan.copy_src) == len(plan.copy_dst) == 2
    assert len(set(plan.copy_src.tolist())) == 1
    assert [a.choice for a in plan.admits] == [1, 2]
    assert [a.sampling.seed for a in plan.admits] == [7, 7]
    driver.run()
    assert [driver.ids(i) for i in (1, 2, 3)] == [[0, 1, 2, 3]] * 3
    assert driver.held_blocks() == 0


def test_t13_when_the_first_choice_ends_early_the_others_keep_going() -> None:
    stops = {1: 2}
    driver = Driver(script=lambda i, k: 255 if stops.get(i) == k else k)
    driver.add(*expand_choices(request(1, 10, 8, n=3), [2, 3])).run()
    assert driver.ids(1) == [0, 1, 255]
    assert driver.ids(2) == driver.ids(3) == list(range(8))


def test_choices_wait_through_the_chunks_of_the_first() -> None:
    driver = Driver(prefill_chunk_tokens=4, prefix_caching=False)
    driver.add(*expand_choices(request(1, 10, 4, n=2), [2]))
    assert [admitted(driver.step()) for _ in range(4)] == [[1], [], [], [2]]
    driver.run()
    assert driver.last(2).usage.computed_tokens == 1 + 3  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["abort", "preempt"])
def test_without_its_first_choice_the_others_take_the_ordinary_way(how: str) -> None:
    driver = Driver(max_rows=2, prefill_chunk_tokens=4, prefix_caching=False)
    driver.add(*expand_choices(request(1, 10, 4, n=2, priority=1), [2]))
    driver.step()
    if how == "abort":
        driver.scheduler.abort(1, driver.now)
        assert admitted(driver.step()) == [2]
    else:
        driver.add(request(3, 5, 30), request(4, 5, 30))  # a higher class takes the row
        while not driver.scheduler._life.open[1].preemptions:
            driver.step()
        assert driver.scheduler._queue.num_parked == 0
        driver.run()
        assert driver.ids(1) == [0, 1, 2, 3]
    driver.run()
    assert driver.ids(2) == [0, 1, 2, 3]
    assert driver.held_blocks() == 0


def test_a_choice_whose_first_was_never_there_takes_the_ordinary_way() -> None:
    _, second = expand_choices(request(1, 10, 4, n=2), [2])
    driver = Driver().add(second)
    assert admitted(driver.step()) == [2]


def test_one_that_took_the_id_of_a_leader_that_is_gone_is_not_taken_for_it() -> None:
    _, second = expand_choices(request(1, 10, 4, n=2), [2])
    driver = Driver(max_rows=2, prefix_caching=False).add(second)  # its leader is gone
    driver.add(request(1, [*range(10)], 4))
    assert admitted(driver.step()) == [1, 2]
    assert driver.plans[0].count.tolist() == [10, 10]  # nothing is forked from the stranger
    late = Driver(max_rows=1, prefix_caching=False).add(second, request(1, [*range(10)], 4)).run()
    assert Reason.LEADER_PREFILL not in late.reasons(2)


def test_a_first_choice_of_a_lower_class_is_not_waited_for() -> None:
    first, second = expand_choices(request(1, 10, 4, n=2, priority=5), [2])
    driver = Driver(prefill_chunk_tokens=4, prefix_caching=False).add(first)
    driver.step()
    driver.add(msgspec.structs.replace(second, priority=0))
    assert admitted(driver.step()) == [2]
    driver.run()
    assert driver.ids(2) == [0, 1, 2, 3]


def test_a_choice_resumed_at_another_place_than_the_first_takes_the_ordinary_way() -> None:
    first, second = expand_choices(request(1, 10, 4, n=2), [2])
    driver = Driver(prefill_chunk_tokens=4, prefix_caching=False)
    driver.add(first, msgspec.structs.replace(second, prior_output=(0, 1)))
    assert admitted(driver.step()) == [1, 2]
    driver.run()
    assert driver.ids(2) == [2, 3]


# classes


def test_a_prefix_that_a_lower_class_computes_is_not_waited_for() -> None:
    driver = Driver(max_num_batched_tokens=16, num_blocks=200).add(request(1, LONG, 2, priority=5))
    driver.step()
    driver.add(request(2, [*LONG, 1], 2, priority=0))
    for i in range(3, 12):  # as long as these come, the first one is not computed
        driver.add(request(i, 16, 1, priority=0))
        driver.step()
    assert Reason.PREFIX_IN_FLIGHT not in driver.reasons(2)
    assert len(driver.ids(2)) == 2
    assert driver.ids(1) == []
    driver.run()
    assert driver.ids(1) == [0, 1]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_higher_class_starts_at_the_next_step_even_when_all_rows_are_taken(depth: int) -> None:
    driver = Driver(max_rows=2, depth=depth).add(request(1, 5, 30, priority=1), request(2, 5, 30, priority=1))
    driver.step()
    driver.step()
    driver.add(request(3, 5, 3, priority=0))
    plan = driver.step()
    assert (admitted(plan), plan.releases.tolist()) == ([3], [1])  # the younger of the two
    assert Reason.ROW_FOR_PRIORITY in driver.reasons(2)
    driver.run()
    assert driver.ids(1) == driver.ids(2) == list(range(30))


def test_a_higher_class_takes_blocks_from_a_lower_one() -> None:
    driver = Driver(num_blocks=12, block_size=4, prefix_caching=False)
    driver.add(request(1, 16, 8, priority=1), request(2, 16, 8, priority=1))
    driver.step()
    driver.add(request(3, 12, 2, priority=0))
    assert admitted(driver.step()) == [3]
    assert Reason.BLOCKS_FOR_PRIORITY in driver.reasons(2)
    assert driver.scheduler.stats(0.0).num_preemptions == 1
    driver.run()
    assert driver.ids(2) == list(range(8))


def test_nobody_is_preempted_when_that_would_not_be_enough() -> None:
    driver = Driver(num_blocks=16, block_size=4, prefix_caching=False)
    driver.add(request(1, 32, 8, priority=0), request(2, 8, 8, priority=1))
    driver.step()
    driver.add(request(3, 40, 2, priority=0))
    driver.step()
    assert driver.scheduler.stats(0.0).num_preemptions == 0
    assert driver.reasons(3) == ["no_blocks"]
    driver.run()
    assert driver.ids(3) == [0, 1]


def test_an_equal_class_never_takes_a_row_and_fcfs_knows_no_classes() -> None:
    for policy, late in (("priority", 1), ("fcfs", 0)):
        driver = Driver(max_rows=1, policy=policy).add(request(1, 5, 6, priority=1), request(2, 5, 2, priority=late))
        driver.run()
        assert driver.scheduler.stats(0.0).num_preemptions == 0
        assert [i for p in driver.plans for i in admitted(p)] == [1, 2]


def test_a_new_high_class_is_computed_before_a_started_low_one() -> None:
    driver = Driver(max_num_batched_tokens=8).add(request(1, 40, 2, priority=1))
    driver.step()
    driver.add(request(2, 8, 2, priority=0))
    assert rows_of(driver.step()) == [(1, 0, 8)]
    assert rows_of(driver.step())[0] == (1, 8, 1)


def test_the_fair_policy_lets_a_quiet_tenant_in_between() -> None:
    driver = Driver(max_rows=1, policy="fair")
    driver.add(*(request(i, 10, 2, tenant="flood") for i in range(6)))
    driver.step()
    driver.add(request(100, 10, 2, tenant="quiet")).run()
    order = [i for p in driver.plans for i in admitted(p)]
    assert order.index(100) <= 2


# modes


def test_a_static_batch_is_filled_once_and_ends_before_the_next_begins() -> None:
    driver = Driver(batching="static", max_rows=2)
    driver.add(request(1, 5, 2), request(2, 5, 6), request(3, 5, 2))
    assert admitted(driver.step()) == [1, 2]
    late = [admitted(driver.step()) for _ in range(5)]
    assert late == [[]] * 5
    assert driver.reasons(3)[-1] == "static_batch"
    assert admitted(driver.step()) == [3]
    driver.run()


def test_a_static_batch_is_not_joined_by_who_comes_later() -> None:
    driver = Driver(batching="static", max_rows=4).add(request(1, 5, 4))
    driver.step()
    driver.add(request(2, 5, 2))
    assert admitted(driver.step()) == []
    driver.run()


def test_a_static_batch_forms_over_several_steps_when_its_prompts_are_long() -> None:
    driver = Driver(batching="static", max_rows=3, max_num_batched_tokens=16)
    driver.add(*(request(i, 12, 4) for i in range(5)))
    order = [admitted(driver.step()) for _ in range(3)]
    assert [i for step in order for i in step] == [0, 1, 2]
    driver.run()


def test_admission_waits_for_a_fuller_batch_and_says_until_when() -> None:
    driver = Driver(max_wait_ms=10.0, max_rows=3).add(request(1, 5, 2, arrival=0.001))
    assert driver.plan(0.002).is_empty
    assert driver.scheduler.wake_time() == pytest.approx(0.011)
    assert driver.reasons(1) == ["batch_wait"]
    driver.add(request(2, 5, 2))
    assert driver.plan(0.002).is_empty
    assert admitted(driver.step(0.01)) == [1, 2]
    assert driver.scheduler.wake_time() is None
    driver.run()


def test_a_full_batch_does_not_wait() -> None:
    driver = Driver(max_wait_ms=1e6, max_rows=2).add(request(1, 5, 2))
    assert driver.plan().is_empty
    driver.add(request(2, 5, 2))
    assert admitted(driver.step()) == [1, 2]


def test_work_that_can_never_move_is_a_stall_with_the_decisions_in_it() -> None:
    driver = Driver().add(request(1, LONG, 2), request(2, [*LONG, 1], 2))
    driver.plan()
    driver.scheduler._queue._parked.clear()  # a lost wake-up, as a bug would make it
    driver.apply()
    with pytest.raises(StallError, match="prefix_in_flight"):
        driver.run()
