"""Goodput, attainment and what a missed target is, against logs computed by hand."""

from __future__ import annotations

import pytest
from tests.pure.lab.metrics.logs import CONTENT, DONE, ERROR, REASONING, chunk, info, record, steady_log

from paceline.contracts.artefact import Chunk, RequestRecord, TokenSource
from paceline.contracts.metrics import GroupMetrics
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass
from paceline.lab.metrics import compute
from paceline.lab.stats import is_infinite

CHAT = SloClass(ttft_s=0.1, tpot_s=0.02, e2e_s=1.0)


def whole(records: list[RequestRecord], *slo: SloClass, end: float = 10_000.0) -> GroupMetrics:
    return compute(info(*slo, end=end), records).whole


def test_limits_are_inclusive() -> None:
    at_limit = record(0, [chunk(100), chunk(120)])
    over = record(1, [chunk(100.001), chunk(110)])
    found = whole([at_limit, over], CHAT)
    assert found.missed == {"ttft": 1}
    assert found.attainment.value == 0.5


def test_each_term_is_counted() -> None:
    log = [
        record(0, [chunk(50), chunk(60)]),
        record(1, [chunk(150), chunk(160)]),  # ttft
        record(2, [chunk(50), chunk(90)]),  # tpot
        record(3, [chunk(150), chunk(1190, 99)]),  # ttft and e2e; tpot is 1040 / 99
    ]
    found = whole(log, CHAT)
    assert found.missed == {"ttft": 2, "tpot": 1, "e2e": 1}
    assert found.attainment.value == 0.25
    assert found.goodput_rps.value == pytest.approx(0.1)  # one in ten seconds
    assert found.good_tokens_per_s.value == pytest.approx(0.2)


def test_all_tokens_in_one_chunk_meet_tpot_vacuously() -> None:
    found = whole([record(0, [chunk(50, 8)]), record(1, [chunk(50), chunk(55)])], CHAT)
    assert found.attainment.value == 1.0
    assert found.num_vacuous == 1
    assert found.latency["tpot"].num_undefined == 1
    assert found.slo_latency["tpot"].n == 1  # left out of the decision, not counted as met


def test_t5_error_inside_a_stream() -> None:
    """HTTP 200, three tokens, an error object, [DONE]: in the denominator, never in a latency."""
    bad = record(
        0,
        [chunk(50), chunk(60), chunk(70), chunk(80, -1, ERROR, 0), chunk(81, -1, DONE, 0)],
        outcome=Outcome.STREAM_ERROR,
    )
    good = record(1, [chunk(50), chunk(60)])
    found = whole([bad, good], CHAT)
    assert found.outcomes == {"ok": 1, "stream_error": 1}
    assert found.missed == {"outcome": 1}
    assert found.attainment.value == 0.5
    assert found.latency["ttft"].n == 1
    assert found.slo_latency["ttft"].n == 2


@pytest.mark.parametrize(
    "outcome", [o for o in Outcome if o not in (Outcome.OK, Outcome.CLIENT_CANCEL, Outcome.DISCONNECT)]
)
def test_every_failure_is_in_the_denominator(outcome: Outcome) -> None:
    found = whole([record(0, [chunk(50), chunk(60)], outcome=outcome), record(1, [chunk(50), chunk(60)])], CHAT)
    assert (found.attainment.value, found.attainment.n) == (0.5, 2)


@pytest.mark.parametrize("outcome", [Outcome.CLIENT_CANCEL, Outcome.DISCONNECT])
@pytest.mark.parametrize(
    ("chunks", "close", "counts"),
    [
        ([chunk(50), chunk(60)], 70, False),  # in time so far: says nothing
        ([], 99, False),  # left before the first token was due
        ([], 101, True),  # waited longer than the target
        ([chunk(150)], 160, True),  # the first token had come late
        ([chunk(50), chunk(90)], 100, True),  # too slow between tokens
        ([chunk(50), chunk(60)], 1001, True),  # the whole took too long
    ],
)
def test_a_client_that_left(outcome: Outcome, chunks: list[Chunk], close: float, counts: bool) -> None:
    found = whole([record(0, chunks, close=close, outcome=outcome), record(1, [chunk(50), chunk(60)])], CHAT)
    assert found.attainment.n == 1 + counts
    assert found.attainment.value == (0.5 if counts else 1.0)
    assert found.num_requests == 2


def test_a_client_that_left_in_a_stall_that_was_too_long() -> None:
    stalls = SloClass(icl_max_s=0.2)
    for close, counts in ((250, False), (270, True)):
        left = record(0, [chunk(50), chunk(60)], close=close, outcome=Outcome.DISCONNECT)
        assert whole([left, record(1, [chunk(50), chunk(60)])], stalls).attainment.n == 1 + counts


def test_percentiles_for_decisions_hold_failures_at_infinity() -> None:
    """94 of 100 in time, 6 failed: p95 is infinite, p90 is not; the table shows the 94."""
    log = steady_log(94)
    log += [record(100 + i, [], plan=94 * 100 + i, outcome=Outcome.TIMEOUT) for i in range(6)]
    found = whole(log, CHAT)
    assert found.slo_latency["ttft"].p90.value == pytest.approx(0.05)
    assert is_infinite(found.slo_latency["ttft"].p95)
    assert found.slo_latency["ttft"].p95.lo == pytest.approx(0.05)
    assert found.slo_latency["ttft"].max is None
    assert found.latency["ttft"].p95.value == pytest.approx(0.05)
    assert found.latency["ttft"].n == 94


def test_time_to_answer_and_longest_gap() -> None:
    terms = SloClass(ttfa_s=0.2, icl_max_s=0.1)
    log = [
        record(0, [chunk(50, 1, REASONING), chunk(150, 1, CONTENT)]),
        record(1, [chunk(50, 1, REASONING), chunk(120, 1, REASONING)]),  # no answer at all
        record(2, [chunk(50, 1, CONTENT), chunk(151, 1, CONTENT)]),  # stalled
    ]
    assert whole(log, terms).missed == {"ttfa": 1, "icl_max": 1}


def test_not_streamed_is_judged_by_its_end() -> None:
    log = [record(0, [chunk(900, 9)], streamed=False), record(1, [chunk(1100, 9)], streamed=False)]
    assert whole(log, CHAT).missed == {"e2e": 1}


def test_not_streamed_without_an_end_to_end_target_is_never_good() -> None:
    metrics = compute(info(SloClass(ttft_s=0.1)), [record(0, [chunk(50, 9)], streamed=False)])
    assert metrics.whole.missed == {"ttft": 1}
    assert "unstreamed_terms" in {c.code for c in metrics.cautions}


def test_validators() -> None:
    terms = SloClass(ttft_s=0.1, validators=("schema", "not_truncated"))
    chunks = [chunk(50), chunk(60)]
    log = [
        record(0, chunks, valid={"schema": True, "not_truncated": True}),
        record(1, chunks, valid={"schema": False, "not_truncated": True}),
        record(2, chunks, valid={"not_truncated": True}),  # carried no schema: it does not apply
        record(3, chunks),  # nobody looked
    ]
    found = whole(log, terms)
    assert found.missed == {"schema": 2, "not_truncated": 1}
    assert found.valid == {"not_truncated": (3, 3), "schema": (1, 2)}
    assert found.num_cut == 0
    assert found.attainment.value == 0.5


def test_what_was_cut_says_nothing_about_validity_and_is_not_good() -> None:
    terms = SloClass(ttft_s=0.1, validators=("json", "schema"))
    chunks = [chunk(50), chunk(60)]
    cut = {"json": False, "schema": False, "not_truncated": False}
    log = [
        record(0, chunks, reason="stop", valid={"json": True, "schema": True, "not_truncated": True}),
        record(1, chunks, reason="stop", valid={"json": True, "schema": False, "not_truncated": True}),
        record(2, chunks, reason="length", valid=cut),
        record(
            3, chunks, reason="length", valid={"json": True, "schema": True, "not_truncated": False}
        ),  # just in time
        record(4, chunks, reason="length", valid={**cut, "not_truncated": True}),  # its length was forced
        record(5, chunks, reason="content_filter", valid=cut),
    ]
    found = whole(log, terms)
    assert found.num_cut == 1
    assert found.valid == {"json": (3, 5), "not_truncated": (3, 6), "schema": (2, 5)}
    assert found.missed == {"json": 3, "schema": 4}
    only_cut = whole(log[2:3], terms)
    assert (only_cut.valid["schema"], only_cut.num_cut) == ((0, 0), 1)


def test_a_class_without_targets_asks_for_a_good_end() -> None:
    metrics = compute(info(), [record(0, [chunk(50)]), record(1, [], outcome=Outcome.REJECTED)])
    assert metrics.whole.attainment.value == 0.5
    assert "no_slo" in {c.code for c in metrics.cautions}


def test_groups_have_their_own_numbers() -> None:
    chat, batch = SloClass(name="chat", ttft_s=0.1), SloClass(name="batch", e2e_s=5.0)
    late = [chunk(150), chunk(160)]
    log = [
        record(0, late, slo_class="chat", tenant="gold", num_input_asked=100, num_output_asked=10),
        record(1, late, slo_class="batch", stream="b", num_input_asked=3000, num_output_asked=500),
        record(2, late, slo_class="batch", stream="b", num_input_asked=3000, num_output_asked=500, turn=1, session=1),
    ]
    found = {(g.kind, g.name): g for g in compute(info(chat, batch), log).groups}
    assert next(iter(found)) == ("all", "all")
    assert found["class", "chat"].attainment.value == 0.0
    assert found["class", "batch"].attainment.value == 1.0
    assert found["tenant", "gold"].num_requests == 1
    assert found["tenant", "default"].num_requests == 2
    assert found["stream", "b"].num_requests == 2
    assert found["bucket", "in 0-127, out 0-31"].num_requests == 1
    assert found["bucket", "in 2048-8191, out 128-511"].num_requests == 2
    assert found["turn", "turn 1"].num_requests == 1
    assert found["all", "all"].num_requests == 3


def test_length_buckets_do_not_depend_on_what_came() -> None:
    log = [
        record(0, [chunk(50)], num_input_asked=100, num_output_asked=40, prompt_tokens=900),
        record(1, [], num_input_asked=100, num_output_asked=40, outcome=Outcome.TIMEOUT),
    ]
    names = {g.name for g in compute(info(), log).groups if g.kind == "bucket"}
    assert names == {"in 0-127, out 32-127"}


def test_fluidity_carries_slack() -> None:
    """Deadlines at 100, 120, 140, 160, 180 ms. A stall after three early tokens is late only beyond the slack."""
    terms = SloClass(ttft_s=0.1, tpot_s=0.02)
    smooth = record(0, [chunk(50), chunk(55), chunk(60), chunk(160), chunk(170)])
    stalled = record(1, [chunk(50), chunk(55), chunk(60), chunk(165, 2)])  # 4th late, 5th (in the same chunk) in time
    late = record(2, [chunk(500), chunk(510)])
    for log, share in (([smooth], 1.0), ([stalled], 0.8), ([late], 0.0), ([smooth, late], 5 / 7)):
        assert whole(log, terms).fluidity.value == pytest.approx(share)


def test_prefix_hits() -> None:
    rest = {"num_input_asked": 100, "num_prefix_asked": 40}
    log = [
        record(0, [chunk(50)], prompt_tokens=100, cached_tokens=0, **rest),
        record(1, [chunk(50)], prompt_tokens=100, cached_tokens=32, **rest),
    ]
    metrics = compute(info(), log)
    assert metrics.whole.prefix_hit.value == pytest.approx(0.16)
    assert metrics.whole.prefix_hit_planned == pytest.approx(0.4)
    assert "prefix_hit" in {c.code for c in metrics.cautions}
    for r in log:
        r.num_shared_asked = 30  # passages: hits only where the same ones came before, in the same order
    shared = compute(info(), log)
    assert shared.whole.prefix_hit_planned is None
    assert "prefix_hit" not in {c.code for c in shared.cautions}
    silent = compute(info(), [record(0, [chunk(50)], prompt_tokens=100)])
    assert silent.whole.prefix_hit.value is None


def test_t8_usage_is_the_truth_about_tokens() -> None:
    """The chunks add up to 100, usage says 80: N is 80, and a warning."""
    log = [record(0, [chunk(100, 50), chunk(150, 50)], total=80, source=TokenSource.CHUNK_USAGE)]
    metrics = compute(info(end=1000.0), log)
    assert metrics.whole.output_tokens == 80
    assert metrics.whole.good_tokens_per_s.value == pytest.approx(80.0)
    assert "token_count_mismatch" in {c.code for c in metrics.cautions}
    assert metrics.whole.latency["tpot"].mean == pytest.approx(0.05 / 30)


def test_small_differences_of_counts_pass() -> None:
    log = [record(0, [chunk(100, 50), chunk(150, 50)], total=101)]
    assert "token_count_mismatch" not in {c.code for c in compute(info(), log).cautions}
