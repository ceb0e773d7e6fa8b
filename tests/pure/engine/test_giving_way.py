"""Whose decode rows skip a step for the first token of a tenant below its part, and when nobody's do."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine

from paceline.contracts.decision import Reason
from paceline.cost.linear import LinearStepCost
from paceline.engine.request_state import NO_ROW
from paceline.engine.shares import Shares

DEAR = LinearStepCost(fixed_ms=8.0, per_token_ms=2.0)  # rows are most of a step
CHEAP = LinearStepCost(fixed_ms=100.0, per_token_ms=0.1)


def beside_a_flood(cost=DEAR, *, quiet=(8,), policy="fair", priority=0, **settings):
    """A flood of four long answers, and then requests of another tenant, of so many tokens. Returns the engine, and of
    each plan its rows and tokens."""
    engine = simulated_engine(cost=cost, policy=policy, max_rows=8, **{"max_num_batched_tokens": 64, **settings})
    plans = []
    build = engine.scheduler._builder.build

    def watched(now, **options):
        plan, flight = build(now, **options)
        if flight is not None:
            plans.append({state.request_id: count for state, count in zip(flight.states, flight.counts, strict=True)})
        return plan, flight

    engine.scheduler._builder.build = watched
    for i in range(4):
        engine.core.submit(make_request(i, np.arange(10) + 20 * i, 60, tenant="flood"))
    for _ in range(6):
        engine.core.step()
    plans.clear()
    for i, length in enumerate(quiet):
        fields = {"tenant": "quiet", "priority": priority}
        engine.core.submit(
            make_request(100 + i, np.arange(length) + 200 + 20 * i, 4, arrival=engine.clock.now(), **fields)
        )
        engine.core.step()
    while engine.core.has_work:
        engine.core.step()
    return engine, plans


def decided(engine, request_id):
    return [d for d in engine.scheduler.explain(request_id) if d.reason is Reason.FIRST_TOKEN_FIRST]


def test_the_floods_rows_skip_the_step_of_a_quiet_tenants_first_token():
    engine, plans = beside_a_flood()
    assert plans[0] == {100: 8}
    assert plans[1] == {0: 1, 1: 1, 2: 1, 3: 1, 100: 1}
    (why,) = decided(engine, 100)
    assert why.numbers == {"left_out": 4.0, "saved_ms": pytest.approx(8.0, rel=0.02)}


def test_they_stay_where_they_cost_little():
    engine, plans = beside_a_flood(CHEAP)
    assert plans[0] == {0: 1, 1: 1, 2: 1, 3: 1, 100: 8}
    assert decided(engine, 100) == []


def test_no_row_skips_two_steps_in_a_row():
    engine, plans = beside_a_flood(quiet=(8, 8, 8))
    skipped = [0 not in plan for plan in plans[:4]]
    assert skipped == [True, False, True, False]
    assert decided(engine, 101) == []
    assert len(decided(engine, 102)) == 1


def test_a_lower_class_of_the_quiet_tenant_goes_before_nobody():
    _, plans = beside_a_flood(priority=1)
    assert all(0 in plan for plan in plans[:4])


def test_other_policies_know_no_tenants():
    _, plans = beside_a_flood(policy="priority")
    assert plans[0] == {0: 1, 1: 1, 2: 1, 3: 1, 100: 8}


def test_under_prefill_first_no_row_skips_two_steps_in_a_row_either():
    """There, rows that found no room in one step have the whole of the next."""
    _, plans = beside_a_flood(quiet=(8, 4), prefill_priority="prefill_first", max_num_batched_tokens=9)
    for row in range(4):
        assert not any(row not in one and row not in two for one, two in pairwise(plans[:6]))
    assert any(3 not in plan for plan in plans[:6])


def test_a_request_that_comes_back_after_giving_its_row_up_had_its_first_token():
    shares = Shares([(0, "q"), (0, "f")], [], lambda _, tenant: {"q": 0.0, "f": 9.0}[tenant], max_rows=8, budget=64)
    state = SimpleNamespace(priority=0, tenant="q", row=1, planned=0, known=8, num_prompt=8)
    assert shares.first_token_due([(state, 8)]) is state
    assert shares.first_token_due([(state, 7)]) is None
    assert shares.first_token_due([(SimpleNamespace(**{**vars(state), "num_prompt": 7}), 8)]) is None
    assert shares.first_token_due([(SimpleNamespace(**{**vars(state), "row": NO_ROW}), 8)]) is None


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_are_the_same_whoever_skipped(depth):
    texts, skips = [], []
    for cost in (DEAR, CHEAP):
        engine = simulated_engine(cost=cost, policy="fair", max_rows=8, depth=depth, block_size=4)
        rows = [make_request(i, np.arange(10) + 20 * i, 60, tenant="flood") for i in range(4)]
        late = [make_request(9 + i, [i + 1] * 8, 9, tenant="quiet", arrival=0.1 + 0.2 * i) for i in range(3)]
        waiting, got = list(late), {}
        for request in rows:
            engine.core.submit(request)
        while waiting or engine.core.has_work:
            while waiting and waiting[0].arrival <= engine.clock.now():
                engine.core.submit(waiting.pop(0))
            if not engine.core.has_work:
                engine.clock.advance_to(waiting[0].arrival)
                continue
            for output in engine.core.step():
                got.setdefault(output.request_id, []).extend(output.token_ids)
        texts.append(got)
        skips.append(sum(len(decided(engine, 9 + i)) for i in range(3)))
    assert texts[0] == texts[1]
    assert sorted(len(tokens) for tokens in texts[0].values()) == [9, 9, 9, 60, 60, 60, 60]
    assert skips[0] > skips[1] == 0
