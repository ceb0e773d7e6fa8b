"""Requests that arrive: what counts as good, and which rate is offered next."""

import math

import pytest
from benchmarks.peers.engines.online import Seen, best_rate, judged, next_rate, plan_of, summary
from benchmarks.peers.engines.workloads import Arrival
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.workload import Endpoint

RATES = [0.5, 1.0, 1.5, 2.0, 3.0]


def offered(start, highest):
    """The rates that are offered to a server that holds all up to `highest`, in order, and what held."""
    held, order = {}, []
    while (rate := next_rate(RATES, start, held)) is not None:
        held[rate] = rate <= highest
        order.append(rate)
    return order, held


@pytest.mark.parametrize(
    ("highest", "order"),
    [
        (9.0, [1.5, 2.0, 3.0]),
        (2.0, [1.5, 2.0, 3.0]),
        (1.5, [1.5, 2.0]),
        (1.0, [1.5, 1.0]),
        (0.5, [1.5, 1.0, 0.5]),
        (0.1, [1.5, 1.0, 0.5]),
    ],
)
def test_rates_go_up_while_they_hold_or_down_until_one_does(highest, order):
    assert offered(1.5, highest)[0] == order


@given(st.sampled_from(RATES), st.floats(0, 4))
def test_the_search_ends_with_the_highest_rate_that_holds(start, highest):
    order, held = offered(start, highest)
    assert len(order) == len(set(order))
    assert best_rate(held) == max((rate for rate in RATES if rate <= highest), default=None)


ARRIVAL = Arrival(at_s=2.0, ids=[1, 2], num_out=11)


@pytest.mark.parametrize(
    ("seen", "good"),
    [
        ({"first_s": 3.0, "last_s": 3.5, "num_tokens": 11}, True),
        ({"first_s": 3.01, "last_s": 3.5, "num_tokens": 11}, False),  # TTFT
        ({"first_s": 3.0, "last_s": 3.51, "num_tokens": 11}, False),  # TPOT
        ({"first_s": 3.0, "last_s": 3.1, "num_tokens": 10}, False),  # not all of it
        ({"first_s": None, "last_s": None, "num_tokens": 0}, False),
        (None, False),
    ],
)
def test_good_is_both_targets_and_every_token(seen, good):
    assert judged(ARRIVAL, seen).good is good


def test_one_token_has_no_time_between_tokens():
    one = judged(Arrival(0.0, [1], 1), {"first_s": 0.5, "last_s": 0.5, "num_tokens": 1})
    assert one.good
    assert math.isnan(one.tpot_s)


def test_summary_by_hand():
    good, bad = Seen(0.5, 0.01, ended=True, good=True), Seen(math.nan, math.nan, ended=False, good=False)
    found = summary([good] * 285 + [bad] * 15)
    assert (found["num_good"], found["num_ended"], found["share"]) == (285, 285, 0.95)
    low = found["share_low"]  # were the true share this, as many good ones would be seen one time in twenty
    as_many = sum(math.comb(300, k) * low**k * (1 - low) ** (300 - k) for k in range(285, 301))
    assert as_many == pytest.approx(0.05)
    assert found["ttft_s"] == [0.5, 0.5]
    assert found["tpot_ms"] == [10.0, 10.0]
    assert summary([good] * 90 + [bad] * 10)["ttft_s"][1] == math.inf


def test_a_plan_keeps_times_lengths_and_ids():
    plan = plan_of([Arrival(0.5, [7, 8, 9], 4), Arrival(1.5, [1], 2)])
    assert [(r.at_s, r.num_input_tokens, r.num_output_tokens) for r in plan.requests] == [(0.5, 3, 4), (1.5, 1, 2)]
    assert {r.endpoint for r in plan.requests} == {Endpoint.TOKEN_IDS}
    assert plan.span_s > 1.5
