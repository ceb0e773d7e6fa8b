"""Requests that arrive: what counts as good, and which rate is offered next."""

import math

import pytest
from benchmarks.peers.engines.online import Seen, best_rate, hopeless, judged, next_rate, plan_of, seen_in, summary
from benchmarks.peers.engines.workloads import Arrival
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.artefact import Chunk, ChunkKind, RequestRecord, TokenSource
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import Endpoint
from paceline.lab.load import Progress

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
    found = summary([good] * 285 + [bad] * 15, 300)
    assert (found["num_good"], found["num_ended"], found["share"]) == (285, 285, 0.95)
    low = found["share_low"]  # were the true share this, as many good ones would be seen one time in twenty
    as_many = sum(math.comb(300, k) * low**k * (1 - low) ** (300 - k) for k in range(285, 301))
    assert as_many == pytest.approx(0.05)
    assert found["ttft_s"] == [0.5, 0.5]
    assert found["tpot_ms"] == [10.0, 10.0]
    assert summary([good] * 90 + [bad] * 10, 100)["ttft_s"][1] == math.inf


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "num_done", "num_failed", "over"),
    [
        (1.2, 0.01, 61, 0, True),
        (0.2, 0.06, 61, 0, True),
        (1.2, 0.01, 60, 0, False),  # thirty late ones of 300 are a tenth, and no more
        (1.2, 0.01, 70, 10, False),  # nothing is known of those that failed
        (1.0, 0.05, 250, 0, False),
        (None, None, 0, 0, False),
    ],
)
def test_a_rate_is_given_up_once_a_tenth_of_all_is_late(ttft_s, tpot_s, num_done, num_failed, over):
    progress = Progress(
        elapsed_s=9.0,
        span_s=200.0,
        num_planned=300,
        num_done=num_done,
        num_failed=num_failed,
        ttft_p50_s=ttft_s,
        tpot_p50_s=tpot_s,
    )
    assert hopeless(progress, 300) is over


def record(id_, *, late_s=0.5, num_tokens=4):
    chunks = [Chunk(round((id_ + late_s + 0.02 * i) * 1e9), ChunkKind.CONTENT, 1, 3) for i in range(num_tokens)]
    return RequestRecord(
        id=id_,
        stream="W5",
        t_plan_ns=id_ * 10**9,
        t_send_ns=id_ * 10**9,
        chunks=chunks,
        outcome=Outcome.OK,
        completion_tokens=num_tokens,
        token_source=TokenSource.CHUNK_USAGE,
    )


def test_records_of_a_server_are_judged_in_the_order_of_the_schedule():
    schedule = [Arrival(float(i), [1], 4) for i in range(3)]
    found = seen_in([record(2), record(0, late_s=1.5), record(1, num_tokens=3)], schedule)
    assert [seen.good for seen in found] == [False, False, True]
    assert [seen.ended for seen in found] == [True, False, True]
    assert found[0].ttft_s == pytest.approx(1.5)
    assert found[2].tpot_s == pytest.approx(0.02)


def test_a_plan_keeps_times_lengths_and_ids():
    plan = plan_of([Arrival(0.5, [7, 8, 9], 4), Arrival(1.5, [1], 2)])
    assert [(r.at_s, r.num_input_tokens, r.num_output_tokens) for r in plan.requests] == [(0.5, 3, 4), (1.5, 1, 2)]
    assert {r.endpoint for r in plan.requests} == {Endpoint.TOKEN_IDS}
    assert plan.span_s > 1.5
