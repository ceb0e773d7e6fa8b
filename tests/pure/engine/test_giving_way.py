"""Whose decode rows skip a step for the first token of a tenant below its part, and when nobody's do."""

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine

from paceline.contracts.decision import Reason
from paceline.cost.linear import LinearStepCost

DEAR = LinearStepCost(fixed_ms=8.0, per_token_ms=2.0)  # rows are most of a step
CHEAP = LinearStepCost(fixed_ms=100.0, per_token_ms=0.1)


def beside_a_flood(cost=DEAR, *, quiet=1, policy="fair", **more):
    """A flood of four long answers, and then requests of another tenant with prompts of 8. Returns the engine, and of
    each plan its rows and tokens."""
    engine = simulated_engine(cost=cost, policy=policy, max_rows=8, max_num_batched_tokens=64)
    plans = []
    build = engine.scheduler._builder.build

    def watched(now):
        plan, flight = build(now)
        if flight is not None:
            plans.append({state.request_id: count for state, count in zip(flight.states, flight.counts, strict=True)})
        return plan, flight

    engine.scheduler._builder.build = watched
    for i in range(4):
        engine.core.submit(make_request(i, np.arange(10) + 20 * i, 60, tenant="flood"))
    for _ in range(6):
        engine.core.step()
    plans.clear()
    for i in range(quiet):
        fields = {"tenant": "quiet", **more}
        engine.core.submit(make_request(100 + i, np.arange(8) + 200 + 20 * i, 4, arrival=engine.clock.now(), **fields))
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
    engine, plans = beside_a_flood(quiet=3)
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


def test_answers_are_the_same_whoever_skipped():
    rows = [(make_request(i, np.arange(10) + 20 * i, 60, tenant="flood")) for i in range(4)]
    texts = []
    for cost in (DEAR, CHEAP):
        engine = simulated_engine(cost=cost, policy="fair", max_rows=8)
        late = [make_request(9 + i, [i + 1] * 8, 9, tenant="quiet", arrival=0.02 * i) for i in range(3)]
        texts.append({i: done.token_ids for i, done in engine.run(*rows, *late).items()})
    assert texts[0] == texts[1]
    assert len(texts[0]) == 7
