"""Order of the waiting: class, tenant, arrival; leaving from anywhere; parking."""

from __future__ import annotations

import random

import pytest
from tests.pure.engine.driver import request

from paceline.engine.queue import WaitingQueue
from paceline.engine.request_state import Phase, RequestState
from paceline.engine.settings import Policy
from paceline.engine.stop import StopRules

RULES = StopRules(stop_ids=frozenset(), min_tokens=0, limit=100)


def state(
    request_id: int, arrival: float = 1.0, *, priority: int = 0, tenant: str = "", tokens: int = 3
) -> RequestState:
    made = request(request_id, tokens, arrival=arrival, priority=priority, tenant=tenant)
    return RequestState(made, rules=RULES, limit=100, priority=priority, tenant=tenant, now=arrival)


def filled(policy: Policy, *states: RequestState) -> WaitingQueue:
    queue = WaitingQueue(policy)
    for each in states:
        queue.push(each)
    return queue


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while queue.peek() is not None:
        order.append(queue.pop().request_id)
    return order


def test_within_a_class_the_earlier_arrival_goes_first_and_ties_go_by_id() -> None:
    assert drain(filled("priority", state(3, 2.0), state(2, 1.0), state(1, 2.0), state(4, 0.5))) == [4, 2, 1, 3]


def test_a_lower_priority_number_goes_first_whatever_the_arrival() -> None:
    queue = filled("priority", state(1, 1.0, priority=5), state(2, 2.0, priority=-3), state(3, 3.0, priority=0))
    assert [s.request_id for s in queue.in_order()] == [2, 3, 1]
    assert drain(queue) == [2, 3, 1]


def test_counts_follow_pushes_pops_parks_and_discards() -> None:
    first, second, third = state(1, tokens=3), state(2, tokens=4), state(3, tokens=5)
    queue = filled("priority", first, second, third)
    assert (queue.num_requests, queue.num_tokens) == (3, 12)
    queue.pop()
    queue.park(b"key")  # the second
    assert (queue.num_requests, queue.num_tokens, queue.num_parked) == (2, 9, 1)
    queue.discard(second)
    queue.discard(third)
    assert (queue.num_requests, queue.num_tokens, queue.num_parked) == (0, 0, 0)
    queue.wake(b"key")
    assert queue.peek() is None


def test_a_parked_request_comes_back_at_its_place() -> None:
    queue = filled("priority", state(1, 1.0), state(2, 2.0), state(3, 3.0))
    assert queue.park(b"a").request_id == 1
    assert queue.park(7).request_id == 2
    head = queue.peek()
    assert head is not None
    assert head.request_id == 3
    queue.wake(b"other")
    queue.wake(b"a")
    assert drain(queue) == [1, 3]
    queue.wake(7)
    assert drain(queue) == [2]


def test_a_discarded_request_is_skipped_wherever_it_was_and_marks_do_not_pile_up() -> None:
    states = [state(i, float(i)) for i in range(1000)]
    queue = filled("priority", *states)
    shuffled = states[:]
    random.Random(3).shuffle(shuffled)
    gone = shuffled[:900]
    for each in gone:
        queue.discard(each)
        each.phase = Phase.FINISHED_ABORT
    left = sorted(s.request_id for s in shuffled[900:])
    assert len(queue._classes[0].queues[""]) <= 2 * len(left) + 64
    assert queue.oldest_arrival() == float(left[0])
    assert drain(queue) == left


def test_an_id_may_come_back_while_the_mark_of_its_first_life_is_still_there() -> None:
    first, other, again = state(5, 2.0), state(1, 1.0), state(5, 2.0)
    queue = filled("priority", first, other)
    queue.discard(first)
    first.phase = Phase.FINISHED_ABORT
    queue.push(again)
    assert drain(queue) == [1, 5]


def test_the_oldest_arrival_counts_the_parked_and_not_the_running() -> None:
    first, second = state(1, 1.0), state(2, 2.0)
    queue = filled("priority", second, first)
    assert queue.oldest_arrival() == 1.0
    queue.park(b"k")
    assert queue.oldest_arrival() == 1.0
    queue.wake(b"k")
    assert queue.pop() is first
    first.phase = Phase.RUNNING
    assert queue.oldest_arrival() == 2.0
    first.phase = Phase.WAITING
    queue.push(first)
    assert queue.oldest_arrival() == 1.0


def test_many_classes_leave_nothing_behind() -> None:
    queue = WaitingQueue("priority")
    for priority in range(500):
        queue.push(state(priority, priority=priority))
    assert drain(queue) == list(range(500))
    assert queue._classes == {}
    assert queue._priorities == []


def test_classes_are_left_behind_neither_by_aborts_nor_by_the_fair_policy() -> None:
    for policy in ("priority", "fair"):
        queue = filled(policy, state(0, priority=0))
        for i in range(1, 2000):
            gone, served = state(2 * i, priority=i), state(2 * i + 1, priority=-i)
            queue.push(gone)
            queue.push(served)
            queue.discard(gone)
            gone.phase = Phase.FINISHED_ABORT
            assert queue.pop() is served
            served.phase = Phase.RUNNING
            if policy == "fair":
                queue.charge(served, 10)
        assert queue._priorities == [0]
        assert len(queue._classes) <= 1 + 64
        assert drain(queue) == [0]


def test_a_class_forgotten_under_a_running_request_is_no_trouble() -> None:
    queue = filled("fair", state(1, priority=7, tenant="t"))
    head = queue.pop()
    queue.charge(head, 10)
    assert queue.debt(head) == 10.0  # nobody waits in its class, and it is remembered
    for i in range(100):
        queue.push(state(i + 2, priority=100 + i))
        queue.pop()
    queue.charge(head, 10)
    assert queue.debt(head) == 0.0
    queue.push(head)
    assert queue.pop() is head


def test_the_fair_policy_serves_the_least_served_tenant_and_ties_to_the_one_that_came_last() -> None:
    queue = filled("fair", *(state(i, float(i), tenant="b" if i < 4 else "a") for i in range(6)))
    order = []
    while (head := queue.peek()) is not None:
        order.append(queue.pop().request_id)
        queue.charge(head, 10)
    assert order == [4, 0, 5, 1, 2, 3]  # a, b, a, b, then b alone


def test_a_flood_moves_only_its_own_tenant() -> None:
    queue = filled("fair", *(state(i, 0.0, tenant="flood") for i in range(100)))
    for _ in range(10):
        head = queue.peek()
        assert head is not None
        queue.pop()
        queue.charge(head, 50)
    queue.push(state(1000, 9.0, tenant="quiet"))
    head = queue.peek()
    assert head is not None
    assert head.request_id in (1000, 10)
    queue.pop()
    queue.charge(head, 50)
    second = queue.peek()
    assert second is not None
    assert {head.request_id, second.request_id} == {1000, 10}


def test_idling_earns_no_credit() -> None:
    queue = filled("fair", state(0, 0.0, tenant="idle"))
    queue.pop()  # served a little, long ago
    for i in range(1, 30):
        queue.push(state(i, 0.0, tenant="busy"))
        head = queue.peek()
        assert head is not None
        queue.pop()
        queue.charge(head, 100)
    queue.push(state(100, 1.0, tenant="busy"))
    for i in range(200, 230):
        queue.push(state(i, 2.0, tenant="idle"))
    order = []
    while (head := queue.peek()) is not None:
        order.append(queue.pop().tenant)
        queue.charge(head, 100)
    assert order.index("busy") <= 1  # lifted to those present, not 29 requests ahead


def test_debt_is_counted_only_by_the_fair_policy() -> None:
    for policy, debt in (("fair", 30.0), ("priority", 0.0)):
        queue = filled(policy, state(1, tenant="t"))  # type: ignore[arg-type]
        head = queue.pop()
        if policy == "fair":
            queue.charge(head, 30)
        assert queue.debt(head) == debt


@pytest.mark.parametrize("leaves", ["pop", "discard", "park"])
def test_one_alone_leaves_in_any_way_and_counts_with_those_that_come_after(leaves: str) -> None:
    first, second = state(1, 2.0), state(2, 1.0)
    queue = filled("priority", first)
    assert queue.peek() is first
    assert queue.in_order() == [first]
    if leaves == "pop":
        assert queue.pop() is first
    elif leaves == "discard":
        queue.discard(first)
    else:
        queue.park(b"key")
        queue.wake_all([b"other", b"key"])
    queue.push(second)
    assert drain(queue) == ([2, 1] if leaves == "park" else [2])
    assert (queue.num_requests, queue.num_tokens, queue.num_parked) == (0, 0, 0)
    assert not first.queued


def test_a_queue_does_what_sorting_does_whoever_comes_and_goes() -> None:
    draw = random.Random(5)
    for _ in range(200):
        queue, waiting = WaitingQueue("priority"), {}
        for request_id in range(12):
            if waiting and draw.random() < 0.5:
                gone = draw.choice(list(waiting.values()))
                queue.discard(waiting.pop(gone.request_id))
            if draw.random() < 0.8:
                waiting[request_id] = state(request_id, float(draw.randint(1, 4)), priority=draw.randint(0, 1))
                queue.push(waiting[request_id])
            order = sorted(waiting.values(), key=lambda s: (s.priority, s.arrival, s.request_id))
            assert queue.peek() is (order[0] if order else None)
            if order and draw.random() < 0.3:
                assert queue.pop() is waiting.pop(order[0].request_id)
            assert queue.num_requests == len(waiting)


def test_nobody_is_woken_by_the_key_of_one_that_is_gone() -> None:
    gone, other = state(1), state(2)
    queue = filled("priority", gone, other)
    queue.park(b"key")
    queue.discard(gone)
    queue.wake_all([b"something"])
    queue.wake_all([b"key"])
    assert drain(queue) == [2]
