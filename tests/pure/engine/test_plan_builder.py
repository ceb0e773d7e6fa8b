"""What a plan holds: decode rows whole, prefill under a budget, drafts where there is room, the same bytes again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from tests.pure.engine.driver import Driver, admitted, request, rows_of

from paceline.contracts.step import NO_FEED, Logits, StepPlan


class Counting:
    """Proposes the driver's default continuation, right `right` times and then wrong."""

    def __init__(self, right: int = 99) -> None:
        self.right = right

    def propose(self, token_ids: np.ndarray, max_drafts: int) -> Sequence[int]:
        last = int(token_ids[-1])
        return [last + 1 + k if k < self.right else 0 for k in range(max_drafts)]


def decoding(driver: Driver, count: int, max_tokens: int = 50) -> Driver:
    """`count` requests past their prompt."""
    driver.add(*(request(i, 2, max_tokens) for i in range(count)))
    while driver.scheduler.num_waiting:
        driver.step()
    assert driver.scheduler.num_running == count
    return driver


def test_a_prompt_is_one_row_that_draws_at_its_end_and_then_one_token_a_step() -> None:
    driver = Driver().add(request(1, 5, 3))
    first, second = driver.step(), driver.step()
    assert rows_of(first) == [(0, 0, 5)]
    assert (first.sample.tolist(), first.logits.tolist(), first.feed_step.tolist()) == ([1], [Logits.LAST], [NO_FEED])
    assert admitted(first) == [1]
    assert first.admits[0].token_ids.tolist() == request(1, 5).prompt.ids.tolist()
    assert rows_of(second) == [(0, 5, 1)]
    assert second.admits == ()
    assert second.est_ms == 0.0


def test_blocks_come_with_the_positions_that_need_them() -> None:
    driver = Driver(block_size=4, windows=(None, 8)).add(request(1, 6, 8))
    plan = driver.step()
    columns = (plan.new_block_group, plan.new_block_row, plan.new_block_index)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert [len(driver.step().new_block_id) for _ in range(3)] == [0, 0, 2]  # positions 6, 7, then 8


def test_a_row_is_released_with_the_next_plan_and_may_be_taken_in_the_same() -> None:
    driver = Driver(max_rows=1).add(request(1, 3, 1), request(2, 3, 1))
    driver.step()
    plan = driver.step()
    assert plan.releases.tolist() == [0]
    assert admitted(plan) == [2]
    assert rows_of(plan) == [(0, 0, 3)]
    assert driver.step().is_empty  # a release alone is not worth a step


@pytest.mark.parametrize("budget", [3, 4, 6, 8])
def test_decode_rows_are_never_cut_and_prefill_takes_what_is_left(budget: int) -> None:
    """Even when the rows are more than the budget: then prefill gets its minimum."""
    driver = decoding(Driver(max_rows=6, max_num_batched_tokens=budget, min_prefill_tokens=2), 4)
    driver.add(request(9, 20, 5))
    plan = driver.step()
    assert plan.count.tolist() == [1, 1, 1, 1, max(budget - 4, 2)]
    assert plan.sample.tolist() == [1, 1, 1, 1, 0]
    assert plan.logits.tolist()[4] == Logits.NONE


def test_prefill_first_leaves_decode_the_rest_and_never_starves_it() -> None:
    driver = decoding(Driver(max_rows=6, max_num_batched_tokens=8, prefill_priority="prefill_first"), 4)
    driver.add(request(9, 40, 5))
    kinds = []
    for _ in range(4):
        plan = driver.step()
        kinds.append((int((plan.count == 1).sum()), int(plan.count.max())))
    assert kinds == [(0, 8), (4, 4), (0, 8), (4, 4)]


def test_prefill_first_without_prefill_runs_all_decode_rows() -> None:
    driver = Driver(max_rows=6, max_num_batched_tokens=4, prefill_priority="prefill_first")
    driver.add(*(request(i, 1, 50) for i in range(6)))
    for _ in range(6):
        driver.step()
    assert driver.scheduler.num_running == 6
    assert [driver.step().num_rows for _ in range(3)] == [6, 6, 6]


def test_the_sum_of_counts_stays_within_what_the_executor_computes() -> None:
    driver = Driver(max_rows=8, max_tokens=16, max_num_batched_tokens=8, min_prefill_tokens=8)
    driver.add(*(request(i, 11, 6) for i in range(20))).run()
    assert max(p.num_tokens for p in driver.plans) <= 16
    assert all(p.num_tokens <= 8 or int((p.count == 1).sum()) >= 1 for p in driver.plans)


# drafts


def test_host_drafts_are_verified_beside_the_draw_and_accepted_as_a_list() -> None:
    driver = Driver(spec_kinds=("host",), num_draft_tokens=3, drafter=Counting()).add(request(1, 3, 20))
    driver.step()
    plan = driver.step()
    assert rows_of(plan) == [(0, 3, 4)]
    assert plan.num_draft.tolist() == [3]
    assert plan.draft_ids.tolist() == [1, 2, 3]
    assert plan.logits.tolist() == [Logits.LAST]
    assert driver.ids(1) == [0, 1, 2, 3, 4]
    driver.run()
    assert driver.ids(1) == list(range(20))
    assert driver.last(1).usage.wasted_tokens == 0  # type: ignore[union-attr]


def test_rejected_drafts_are_taken_back_and_counted() -> None:
    driver = Driver(spec_kinds=("host",), num_draft_tokens=3, drafter=Counting(right=1)).add(request(1, 3, 20))
    driver.step()
    driver.step()
    assert driver.ids(1) == [0, 1, 2]
    assert rows_of(driver.step())[0][1] == 5  # prompt 3, outputs 0 and 1 computed; 2 is next
    driver.run()
    assert driver.ids(1) == list(range(20))
    usage = driver.last(1).usage
    assert usage is not None
    assert usage.wasted_tokens > 0
    assert usage.computed_tokens - usage.wasted_tokens == 3 + 20 - 1


def test_drafts_never_pass_the_last_token_that_may_come() -> None:
    driver = Driver(spec_kinds=("host",), num_draft_tokens=8, drafter=Counting()).add(request(1, 3, 5))
    driver.step()
    assert driver.step().num_draft.tolist() == [3]  # one is there, four may come: three drafts and the draw
    assert not driver.scheduler.has_work
    assert driver.ids(1) == list(range(5))


def test_drafts_leave_prefill_its_minimum_and_take_no_victims() -> None:
    driver = decoding(
        Driver(max_rows=6, max_num_batched_tokens=12, min_prefill_tokens=4, spec_kinds=("host",),
               num_draft_tokens=4, drafter=Counting()), 2)  # fmt: skip
    driver.add(request(9, 30, 5))
    plan = driver.step()
    assert plan.num_draft.tolist() == [4, 2, 0]
    assert plan.count.tolist() == [5, 3, 4]
    tight = Driver(num_blocks=2, block_size=4, spec_kinds=("host",), num_draft_tokens=4, drafter=Counting())
    tight.add(request(1, 5, 8)).run()
    assert tight.last(1).usage.preemptions == 0  # type: ignore[union-attr]


def test_a_device_drafter_is_asked_and_its_proposals_come_with_the_next_plan() -> None:
    driver = Driver(spec_kinds=("device",), num_draft_tokens=2).add(request(1, 3, 6))
    driver.device_drafts[1] = [1, 2, 3]
    first = driver.step()
    assert first.want_drafts.tolist() == [2]
    plan = driver.step()
    assert plan.draft_ids.tolist() == [1, 2]
    assert plan.want_drafts.tolist() == [2]
    assert driver.ids(1) == [0, 1, 2, 3]
    last = driver.step()
    assert last.want_drafts.tolist() == [0]  # at most two more can come
    driver.run()
    assert driver.ids(1) == list(range(6))


# several plans in flight


def test_with_feedback_a_row_draws_again_from_the_draw_in_flight() -> None:
    driver = Driver(depth=2).add(request(1, 3, 4))
    first, second = driver.plan(), driver.plan()
    assert (first.step, second.step) == (0, 1)
    assert rows_of(second) == [(0, 3, 1)]
    assert second.feed_step.tolist() == [0]
    driver.apply()
    third = driver.plan()
    assert (rows_of(third), third.feed_step.tolist()) == ([(0, 4, 1)], [1])


def test_without_feedback_a_row_waits_for_the_host_and_others_fill_the_gap() -> None:
    driver = Driver(depth=2, feedback=False).add(request(1, 3, 4))
    driver.plan()
    assert driver.plan().is_empty
    driver.add(request(2, 3, 4))
    assert admitted(driver.plan()) == [2]
    driver.run()
    assert driver.ids(1) == driver.ids(2) == [0, 1, 2, 3]


def test_chunks_of_one_prompt_follow_each_other_in_flight() -> None:
    driver = Driver(depth=2, feedback=False, prefill_chunk_tokens=4).add(request(1, 10, 2))
    assert rows_of(driver.plan()) == [(0, 0, 4)]
    assert rows_of(driver.plan()) == [(0, 4, 4)]
    driver.apply()
    third = driver.plan()
    assert (rows_of(third), third.sample.tolist(), third.feed_step.tolist()) == ([(0, 8, 2)], [1], [NO_FEED])


def test_a_draw_that_is_surely_the_last_is_not_followed_by_another() -> None:
    driver = Driver(depth=2).add(request(1, 3, 2))
    driver.plan()
    driver.plan()
    driver.apply()
    assert driver.plan().is_empty
    driver.run()
    assert driver.last(1).usage.wasted_tokens == 0  # type: ignore[union-attr]


def test_a_row_that_speculates_is_in_one_plan_at_a_time() -> None:
    driver = Driver(depth=2, spec_kinds=("host",), num_draft_tokens=2, drafter=Counting()).add(request(1, 3, 9))
    driver.plan()
    assert driver.plan().is_empty
    driver.apply()
    assert driver.plan().num_draft.tolist() == [2]
    assert driver.plan().is_empty
    driver.run()
    assert driver.ids(1) == list(range(9))


def test_three_plans_in_flight_feed_from_the_latest() -> None:
    driver = Driver(depth=3).add(request(1, 3, 9))
    assert [driver.plan().feed_step.tolist() for _ in range(3)] == [[NO_FEED], [0], [1]]
    driver.run()
    assert driver.ids(1) == list(range(9))


# the same bytes


def digests(depth: int) -> list[bytes]:
    driver = Driver(depth=depth, num_blocks=24, max_rows=4, policy="fair", prefill_chunk_tokens=6)
    for i in range(12):
        driver.add(request(i, 5 + 3 * i % 17, 4 + i % 7, tenant=f"t{i % 3}", priority=i % 2))
        driver.step()
    driver.run()
    return [plan.digest() for plan in driver.plans]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_calls_give_the_same_plans_byte_for_byte(depth: int) -> None:
    first = digests(depth)
    assert len(first) > 20
    assert hashlib.sha256(b"".join(first)).digest() == hashlib.sha256(b"".join(digests(depth))).digest()


def test_every_column_is_int32() -> None:
    driver = Driver(spec_kinds=("host",), num_draft_tokens=2, drafter=Counting())
    driver.add(request(1, 9, 6), request(2, 4, 6)).run()

    def arrays(plan: StepPlan) -> list[np.ndarray]:
        return [v for name in plan.__struct_fields__ if isinstance(v := getattr(plan, name), np.ndarray)]

    assert all(a.dtype == np.int32 for plan in driver.plans for a in arrays(plan))
