"""Targets and prices to decisions, in virtual time: each rule moves TTFT or TPOT the way its page says."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from tests.fakes.builders import make_request, simulated_engine
from tests.fakes.traffic import Served, serve
from tests.pure.engine.driver import Driver
from tests.pure.engine.driver import request as small_request

from paceline.contracts.request import Request
from paceline.contracts.slo import Slo
from paceline.cost.linear import LinearStepCost
from paceline.errors import ConfigError

Arrivals = list[tuple[float, Request]]
# 5 ms a step, 50 µs a token: a prefill of 1,000 tokens costs as much as ten decode steps
COST = LinearStepCost(fixed_ms=5.0, per_token_ms=0.05, per_row_ms=0.05, per_context_token_ms=0.0)
ROOM = {"max_num_batched_tokens": 2048, "max_num_seqs": 32}
NO_TARGETS = Slo()
TEN_MS = Slo(tpot_s=0.010)


def request(request_id: int, prompt: int, output: int, slo: Slo = NO_TARGETS, **fields: Any) -> Request:
    """Ids that no other request shares."""
    ids = np.arange(prompt) + 1000 * request_id + 1
    return make_request(request_id, ids % 30_000, output, sampling={"ignore_eos": True}, slo=slo, **fields)


def run(arrivals: Arrivals, mode: str = "auto", **settings: Any) -> Served:
    return serve(simulated_engine(cost=COST, **{**ROOM, "scheduling_mode": mode, **settings}), arrivals)


def talkers(count: int, slo: Slo = TEN_MS, output: int = 80) -> Arrivals:
    return [(0.0, request(i, 8, output, slo)) for i in range(count)]


def test_a_prompt_takes_what_the_running_rows_can_spare_and_no_more() -> None:
    arrivals = [*talkers(4), (0.05, request(10, 3000, 5))]
    fixed, auto = run(arrivals, "fixed"), run(arrivals)
    assert fixed.tpot(range(4), q=1.0) < 0.0100  # one long step of 100 ms, paid back by all the others ...
    assert fixed.worst_gap(range(4)) > 0.1
    # ... while here a gap is about what the row was ahead, and what it will surely get ahead again
    assert auto.worst_gap(range(4)) < 0.6 * fixed.worst_gap(range(4))
    assert auto.tpot(range(4), q=1.0) <= 0.010
    assert auto.ttft([10]) < 0.6


def test_without_targets_auto_makes_the_steps_that_fixed_makes() -> None:
    arrivals = [*talkers(4, Slo()), (0.05, request(10, 3000, 5))]
    fixed, auto = run(arrivals, "fixed"), run(arrivals)
    assert [t.chunks for t in auto.timelines.values()] == [t.chunks for t in fixed.timelines.values()]


def test_a_tighter_target_makes_smaller_chunks() -> None:
    gaps, ttfts = [], []
    for tpot_s in (0.007, 0.012, 0.050):
        served = run([*talkers(4, Slo(tpot_s=tpot_s)), (0.05, request(10, 3000, 5))])
        gaps.append(served.worst_gap(range(4)))
        ttfts.append(served.ttft([10]))
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[-1] / 2
    assert ttfts == sorted(ttfts, reverse=True)


def test_a_row_more_waits_until_all_keep_their_pace_with_it() -> None:
    # 5 ms and 0.1 ms a row: a target of 6 ms, with a hundredth to spare, has room for 9 rows
    arrivals = [(0.0, request(i, 8, 60, Slo(tpot_s=0.006))) for i in range(16)]
    fixed, auto = run(arrivals, "fixed"), run(arrivals)
    assert fixed.tpot(q=0.5) > 0.006
    assert auto.tpot(q=0.5) <= 0.006 + 1e-9
    admitted = sorted(t.admitted for t in auto.timelines.values())
    assert admitted[8] < 0.05 < admitted[9]


def test_of_two_prompts_the_one_with_less_slack_goes_first() -> None:
    hurry, time_enough = Slo(ttft_s=0.3), Slo(ttft_s=3.0)
    arrivals = [(0.0, request(0, 4000, 2, time_enough)), (0.001, request(1, 4000, 2, time_enough))]
    arrivals += [(0.002, request(2, 400, 2, hurry))]
    fixed, auto = run(arrivals, "fixed"), run(arrivals)
    assert auto.ttft([2]) < 0.3 < fixed.ttft([2])
    assert max(auto.ttft([0]), auto.ttft([1])) < 3.0


def test_no_effort_is_burnt_on_lost_causes_ahead_of_savable_ones_and_lost_ones_still_finish() -> None:
    # a burst of which half can be served in time: by arrival, everybody behind the first half is late
    slo = Slo(ttft_s=0.5)
    arrivals = [(0.0, request(i, 1000, 2, slo)) for i in range(16)]
    arrivals += [(0.40 + 0.06 * i, request(20 + i, 1000, 2, slo)) for i in range(8)]
    fixed, auto = run(arrivals, "fixed"), run(arrivals)
    good = [sum(t.is_good(slo) for t in served.timelines.values()) for served in (fixed, auto)]
    assert good[1] >= good[0] + 4
    assert all(t.num_tokens == 2 for t in auto.timelines.values())


def test_a_target_out_of_reach_asks_nothing_and_is_recorded() -> None:
    built = simulated_engine(cost=COST, **ROOM, scheduling_mode="auto")
    serve(built, [(0.0, request(0, 8, 4, Slo(tpot_s=0.001)))])
    decision = built.core.decisions(0)[0]
    assert (decision.kind, decision.reason) == ("clamp", "tpot_out_of_reach")
    assert decision.numbers["target_ms"] == pytest.approx(1.0)
    assert decision.numbers["alone_ms"] > 5.0
    harmed = run([*talkers(4), (0.0, request(9, 8, 80, Slo(tpot_s=1e-9, ttft_s=1e-9)))])
    alone = run(talkers(4))
    assert harmed.tpot(range(4), q=1.0) < 1.05 * alone.tpot(range(4), q=1.0)


def test_choices_have_reasons_with_numbers() -> None:
    built = simulated_engine(cost=COST, **ROOM, scheduling_mode="auto")
    late = (0.06, request(11, 3000, 2, Slo(ttft_s=0.05)))
    serve(built, [*talkers(4), (0.05, request(10, 3000, 5)), late])
    paced = next(d for d in built.core.decisions(10) if d.reason == "paced")
    assert paced.numbers["tokens"] < paced.numbers["todo"]
    assert paced.numbers["step_ms"] > 0
    gone = next(d for d in built.core.decisions(11) if d.reason == "late")
    assert gone.numbers["late_ms"] > 0


def test_a_step_is_no_longer_than_who_may_come_can_bear() -> None:
    slo = Slo(ttft_s=0.1)
    arrivals = [(0.0, request(0, 20, 2, slo)), (0.1, request(1, 2000, 2)), (0.11, request(2, 20, 2, slo))]
    fixed, auto = run(arrivals, "fixed"), run(arrivals)
    assert fixed.ttft([2]) > 0.09
    assert auto.ttft([2]) < 0.075  # the rest of one step of 40 ms, and one more


def test_a_prompt_that_would_be_late_is_computed_at_once_where_no_row_can_feel_it() -> None:
    # 4 rows take 5.4 ms; a target of 5.56 ms leaves a step room for 2 positions; 80 of them are 4 ms, once
    slo = Slo(tpot_s=0.00556)
    rows = talkers(4, slo, output=100)
    short = run([*rows, (0.05, request(30, 80, 2, Slo(ttft_s=0.05)))])
    assert short.ttft([30]) < 0.05
    assert short.tpot(range(4), q=1.0) <= 0.00556
    long = run([*rows, (0.05, request(30, 900, 2, Slo(ttft_s=0.3)))])
    assert long.ttft([30]) > 0.3  # 45 ms would be felt by all of them
    assert long.tpot(range(4), q=1.0) <= 0.00556


def test_rows_spend_what_they_are_ahead_on_company() -> None:
    # 4 rows have taken 5.4 ms a token for 300 ms; with 8 more it is 6.2 ms, for a few tokens
    arrivals = [*talkers(4, Slo(tpot_s=0.006), output=200), *((0.3, request(10 + i, 8, 20)) for i in range(8))]
    served = run(arrivals)
    assert max(served.timelines[10 + i].queue_s for i in range(8)) < 0.02
    assert served.tpot(range(4), q=1.0) <= 0.006


def test_tokens_have_what_the_first_one_leaves_of_a_target_for_the_whole() -> None:
    # half of what there is to spare would be 7.5 ms a token, with room for 25 rows; all of it has room for 30
    slo = Slo(e2e_s=1.0)
    served = run([(0.0, request(i, 8, 100, slo)) for i in range(30)])
    assert all(t.is_good(slo) for t in served.timelines.values())
    assert max(t.queue_s for t in served.timelines.values()) < 0.1


def test_auto_excludes_what_it_decides() -> None:
    for wrong in ({"batching": "static"}, {"prefill_priority": "prefill_first"}):
        with pytest.raises(ConfigError, match="auto decides by itself"):
            Driver(scheduling_mode="auto", **wrong)


def test_rows_of_fixed_engines_have_no_targets() -> None:
    driver = Driver().add(small_request(1, 4, slo=Slo(ttft_s=1.0, tpot_s=1.0)))
    state = driver.scheduler._life.open[1]
    assert (state.by_slack, state.start_by, state.tpot_s) == (False, inf, inf)
