"""Who is about, who leaves room, and how much: shares under the fair policy."""

from types import SimpleNamespace

import pytest
from tests.fakes.builders import make_request, simulated_engine

from paceline.contracts.decision import Reason
from paceline.engine import policies
from paceline.engine.shares import WINDOW_S, Arrivals, Shares


def state(tenant="a", priority=0, arrival=0.0, request_id=0):
    return SimpleNamespace(tenant=tenant, priority=priority, arrival=arrival, request_id=request_id)


def shares(running, debts, *, max_rows=32, budget=100):
    """`debts` by tenant, in the order in which they came last."""
    about = [(0, tenant) for tenant in debts]
    return Shares(about, running, lambda _, tenant: debts[tenant], max_rows=max_rows, budget=budget)


def test_a_tenant_is_about_for_a_while_the_last_one_first():
    arrivals = Arrivals()
    for tenant, at in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        arrivals.note(state(tenant, arrival=at))
    arrivals.note(state("b", priority=5, arrival=4.0))
    assert arrivals.about(4.0) == [(5, "b"), (0, "a"), (0, "b")]
    assert arrivals.about(2.5 + WINDOW_S) == [(5, "b"), (0, "a")]
    assert arrivals.about(10.0 + WINDOW_S) == []


def test_many_tenants_cost_no_more_than_some():
    arrivals = Arrivals()
    for number in range(1000):
        arrivals.note(state(f"t{number}", arrival=1.0))
    about = arrivals.about(1.0)
    assert len(about) == 32
    assert about[0] == (0, "t999")


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_who_is_gone_is_forgotten_whatever_the_batching(batching):
    engine = simulated_engine(policy="fair", batching=batching)
    for number in range(50):
        engine.run(make_request(number, [1, 2], 1, tenant=f"t{number}", arrival=engine.clock.now()))
        engine.clock.sleep(WINDOW_S)
    assert len(engine.scheduler._queue.arrivals._last) <= 2


def test_the_last_rows_are_for_tenants_below_their_share():
    found = shares([state("a")] * 16, {"b": 0.0, "a": 50.0})
    assert found.row_limit(state("a")) == 30  # two of 32 stay free
    assert found.row_limit(state("b")) == 32
    assert shares([state("a")] * 15, {"b": 0.0, "a": 50.0}).row_limit(state("a")) == 32


def test_a_small_batch_keeps_no_row_free():
    assert shares([state("a")] * 6, {"b": 0.0, "a": 50.0}, max_rows=7).row_limit(state("a")) == 7
    assert shares([state("a")] * 6, {"b": 0.0, "a": 50.0}, max_rows=8).row_limit(state("a")) == 7


def test_a_tenant_below_its_part_gets_the_row_of_the_youngest_of_who_runs_most():
    flood = [state("a", arrival=float(i)) for i in range(7)]
    running = [*flood, state("b")]
    found = shares(running, {"b": 0.0, "a": 50.0}, max_rows=8)
    assert found.victim_for(state("b"), []) is flood[6]
    assert found.victim_for(state("b"), [flood[6]]) is flood[5]  # it was admitted in this step
    assert found.victim_for(state("a"), []) is None
    assert found.victim_for(state("b", priority=1), []) is None  # other classes preempt by class alone


def test_rows_move_towards_equal_parts_only():
    equal = [state("a")] * 4 + [state("b")] * 4
    assert shares(equal, {"b": 0.0, "a": 50.0}, max_rows=8).victim_for(state("b"), []) is None
    nearly = [state("a")] * 5 + [state("b")] * 3
    found = shares(nearly, {"b": 0.0, "a": 50.0}, max_rows=8)
    assert found.victim_for(state("b"), []) is nearly[0]
    assert found.victim_for(state("a"), []) is None


def test_prompts_of_who_runs_more_than_an_equal_part_get_a_portion_in_all():
    found = shares([state("a")] * 3 + [state("b")], {"b": 0.0, "a": 50.0})
    assert found.room(state("b"), 90) == 90
    assert found.room(state("a"), 90) == 25
    found.spend(state("a"), 20)
    assert found.room(state("a"), 10) == 5
    found.spend(state("b"), 70)
    assert found.room(state("a"), 10) == 0  # the least served computes its prompt in this step
    found.note_row(state("b"))
    found.note_row(state("b"))
    assert found.room(state("a"), 10) == 10  # equal parts


def test_the_least_served_is_never_held_back_and_of_equals_the_newest():
    running = [state("a")] * 5 + [state("b")]
    assert shares(running, {"b": 9.0, "a": 1.0}).room(state("a"), 90) == 90
    assert shares(running, {"b": 1.0, "a": 1.0}).room(state("a"), 90) == 25
    assert shares(running, {"a": 1.0, "b": 1.0}).room(state("a"), 90) == 90


def test_something_is_always_left():
    assert shares([state("a")], {"b": 0.0, "a": 5.0}, budget=1).room(state("a"), 1) == 1


def test_a_prefill_that_has_begun_goes_on_first_but_before_less_served_tenants():
    debt = {"a": 5.0, "b": 5.0, "c": 9.0}.get

    def goes_on(begun, head):
        return policies.goes_on_first(begun, head, lambda s: debt(s.tenant))

    assert goes_on(state("a"), state("a"))
    assert not goes_on(state("a"), state("b"))  # equals: the head's tenant has nothing in this step yet
    assert goes_on(state("a"), state("c"))
    assert not goes_on(state("c"), state("a"))
    assert goes_on(state("c", priority=-1), state("a"))
    assert not goes_on(state("a", priority=1), state("c"))


def test_who_waits_for_its_share_is_told_so():
    engine = simulated_engine(policy="fair", max_rows=8, max_num_batched_tokens=512)
    for number in range(1, 10):
        engine.core.submit(make_request(number, [number] * 20, 50, tenant="a"))
    engine.core.submit(make_request(20, [20] * 20, 50, tenant="b"))
    for _ in range(3):
        engine.step()
    waiting = [n for n in range(1, 10) if engine.core.decisions(n)[-1].reason is Reason.TENANT_SHARE]
    assert waiting == [7, 8, 9]  # the first in line, and those behind it
    assert engine.scheduler.num_running == 7
    engine.core.submit(make_request(21, [21] * 20, 50, tenant="b"))
    engine.step()
    assert engine.core.decisions(21)[-1].reason is Reason.COLD  # the row that was kept
    assert engine.scheduler.num_running == 8


def test_names_break_no_ties_in_the_queue():
    """A tenant that comes back is lifted to the least counter there; it goes first, whatever it is called."""
    for flood, quiet in (("a", "z"), ("z", "a")):
        engine = simulated_engine(policy="fair", max_rows=4, max_num_batched_tokens=16)
        for number in range(1, 9):
            engine.core.submit(make_request(number, [number] * 16, 2, tenant=flood))
        engine.step()
        engine.core.submit(make_request(20, [20] * 16, 2, tenant=quiet))
        for _ in range(2):
            engine.step()
        assert engine.core.decisions(20)[-1].reason in (Reason.COLD, Reason.CHUNKED), flood


def test_a_full_batch_of_one_tenant_gives_a_row_to_another_and_all_of_them_end():
    engine = simulated_engine(policy="fair", max_rows=8, max_num_batched_tokens=512)
    for number in range(1, 9):
        engine.core.submit(make_request(number, [number] * 20, 50, tenant="a"))
    engine.step()
    assert engine.scheduler.num_running == 8  # nobody else was about
    engine.core.submit(make_request(20, [20] * 20, 50, tenant="b"))
    engine.step()
    assert engine.core.decisions(20)[-1].reason is Reason.COLD
    assert any(d.reason is Reason.ROW_FOR_SHARE and d.other == 20 for d in engine.core.decisions(8))
    finished = {}
    while engine.core.has_work:
        for output in engine.core.step():
            if output.finish is not None:
                finished[output.request_id] = output.usage
    assert set(finished) == {*range(1, 9), 20}
    assert {i: u.preemptions for i, u in finished.items() if u.preemptions} == {8: 1}  # once, and never back and forth
    assert all(u.output_tokens == 50 for u in finished.values())


def test_a_victim_that_is_next_in_line_does_not_stop_who_gets_its_row():
    """Its tenant runs the most and was served the least: back in the queue it stands before the other."""
    engine = simulated_engine(policy="fair", max_rows=4, max_num_batched_tokens=512)
    engine.run(make_request(0, [9] * 400, 1, tenant="b"))
    for number in range(1, 5):
        engine.core.submit(make_request(number, [number] * 4, 30, tenant="a"))
    engine.step()
    engine.core.submit(make_request(20, [20] * 4, 30, tenant="b"))
    engine.step()
    assert engine.core.error is None
    assert engine.core.decisions(20)[-1].reason is Reason.COLD
    finished = engine.finish()
    assert {i: f.last.usage.preemptions for i, f in finished.items()} == {1: 0, 2: 0, 3: 0, 4: 1, 20: 0}


def test_nobody_loses_a_row_to_one_that_lacks_blocks():
    """Blocks that a step in flight still touches are on their way, but they are not there yet."""
    engine = simulated_engine(
        policy="fair", depth=2, block_size=4, num_blocks=40, max_rows=4, watermark=0.0, prefix_caching=False
    )
    engine.run(make_request(99, [9] * 150, 8, tenant="b"))  # so that it stands behind the other
    for number in range(4):
        engine.core.submit(make_request(number, [number + 10] * 20, 12, tenant="a"))
    for _ in range(3):
        engine.step()
    engine.core.abort(0)
    engine.core.submit(make_request(4, [14] * 4, 12, tenant="a"))
    engine.core.submit(make_request(20, [20] * 60, 4, tenant="b"))
    engine.step()
    assert engine.core.decisions(4)[-1].reason is Reason.COLD  # it has the last row
    assert engine.core.decisions(20)[-1].reason is Reason.NO_BLOCKS
    assert engine.scheduler.num_running == 4
    done = engine.finish()
    assert len(done[20].token_ids) == 4


def test_no_lower_class_is_preempted_to_keep_a_row_free():
    engine = simulated_engine(policy="fair", max_rows=16, max_num_batched_tokens=512)
    for number in range(14):
        engine.core.submit(make_request(number, [number + 1] * 20, 60, tenant="a"))
    engine.core.submit(make_request(20, [20] * 20, 60, tenant="b", priority=1))
    engine.step()
    assert engine.scheduler.num_running == 15
    engine.core.submit(make_request(21, [21] * 20, 60, tenant="a"))  # above its part
    engine.step()
    assert engine.scheduler.num_running == 16
    assert [d.reason for d in engine.core.decisions(20)] == [Reason.COLD]
