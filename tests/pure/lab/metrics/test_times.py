"""Times of single requests against logs computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pure.lab.metrics.logs import CONTENT, DONE, REASONING, ROLE, TOOL, USAGE, chunk, info, ns, record, steady_log

from paceline.contracts.artefact import RequestRecord, TokenSource
from paceline.contracts.slo import Outcome, Timeline
from paceline.lab.metrics import compute
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.judge import Times, times_of
from paceline.lab.metrics.latency import Gaps


def times(*records: RequestRecord) -> Times:
    return times_of(columns_of(records))


def ms(value: float) -> float:
    return round(1e3 * float(value), 6)


def gaps(records: list[RequestRecord], *, spread: bool) -> list[tuple[float, float]]:
    """(ms, weight)"""
    found = Gaps(columns_of(records), spread=spread)
    return [(ms(g), float(w)) for g, w in zip(found.gap, found.weight, strict=True)]


def test_t1_tokens_in_bundles() -> None:
    """8 tokens in 2 chunks, 5 then 3, 90 ms apart: TPOT is 90 / 3, not 90 / 7 and not 90."""
    log = [record(0, [chunk(100, 5), chunk(190, 3)])]
    assert ms(times(*log).tpot[0]) == 30.0
    assert gaps(log, spread=True) == [(30.0, 3.0)]
    assert gaps(log, spread=False) == [(90.0, 1.0)]


def test_t2_role_and_empty_chunks_are_no_token() -> None:
    log = record(0, [chunk(10, -1, ROLE, 0), chunk(20, 0, CONTENT, 0), chunk(200), chunk(210)])
    assert ms(times(log).ttft[0]) == 200.0


def test_t4_no_token_at_all() -> None:
    """A stream that ends well, it says, without a token is not ok, and has no time of any kind."""
    log = [record(0, [chunk(10, -1, ROLE, 0), chunk(30, -1, DONE, 0)], source=TokenSource.NONE, total=0)]
    found = times(*log)
    assert math.isnan(found.ttft[0])
    assert math.isnan(found.e2e[0])
    whole = compute(info(), log).whole
    assert whole.outcomes == {"no_token": 1}
    assert whole.missed == {"no_token": 1}
    assert whole.attainment.value == 0.0
    assert whole.latency["ttft"].n == 0


def test_times_are_from_the_plan_and_from_the_send() -> None:
    found = times(record(0, [chunk(130), chunk(150), chunk(150.5, -1, USAGE, 0)], plan=20, send=25, close=180))
    assert (ms(found.lag[0]), ms(found.ttft[0]), ms(found.ttft_send[0])) == (5.0, 110.0, 105.0)
    assert (ms(found.e2e[0]), ms(found.e2e_send[0]), ms(found.tail[0])) == (130.0, 125.0, 30.0)


def test_answer_comes_after_reasoning() -> None:
    thought = record(0, [chunk(50, 1, REASONING), chunk(300, 1, CONTENT)])
    called = record(1, [chunk(50, 1, REASONING), chunk(90, 1, TOOL)])
    only = record(2, [chunk(50, 1, REASONING), chunk(60, 1, REASONING)])
    found = times(thought, called, only)
    assert [ms(v) for v in found.ttft] == [50.0, 50.0, 50.0]
    assert [ms(found.ttfa[0]), ms(found.ttfa[1])] == [300.0, 90.0]
    assert math.isnan(found.ttfa[2])


def test_only_the_total_is_known() -> None:
    """9 tokens in 3 chunks: the first counts as one, the other 8 are shared by two gaps of 40 ms: TPOT 10 ms."""
    log = [record(0, [chunk(100, -1), chunk(140, -1), chunk(180, -1)], total=9, source=TokenSource.FINAL_USAGE)]
    columns = columns_of(log)
    assert columns.count.tolist() == [1.0, 4.0, 4.0]
    assert ms(times(*log).tpot[0]) == 10.0
    assert gaps(log, spread=True) == [(10.0, 4.0), (10.0, 4.0)]


def test_chunk_counts_are_not_believed_where_only_the_total_is_told() -> None:
    log = [record(0, [chunk(100, 1), chunk(140, 1)], total=5, source=TokenSource.FINAL_USAGE)]
    assert ms(times(*log).tpot[0]) == 10.0


def test_one_chunk_has_no_tpot_whatever_it_held() -> None:
    told = record(0, [chunk(100, -1)], total=50, source=TokenSource.FINAL_USAGE)
    counted = record(1, [chunk(100, 50)])
    found = times(told, counted)
    assert all(math.isnan(v) for v in found.tpot)
    assert found.vacuous.tolist() == [True, True]


def test_chunks_are_never_taken_for_tokens() -> None:
    log = [record(0, [chunk(100, -1), chunk(140, -1)], total=-1, source=TokenSource.CHUNKS)]
    found = times(*log)
    assert math.isnan(found.tpot[0])
    assert not found.vacuous[0]
    assert gaps(log, spread=True) == []
    metrics = compute(info(), log)
    assert metrics.output_tokens_per_s.value is None
    assert metrics.whole.good_tokens_per_s.value is None
    assert "no_token_counts" in {c.code for c in metrics.cautions}


def test_tokens_of_a_chunk_without_text_show_with_the_next() -> None:
    """Half a character brings a token but no text; the end token neither. N is 4, and 1 of them came first."""
    log = [record(0, [chunk(100), chunk(120, 1, CONTENT, 0), chunk(140), chunk(150, 1, ROLE, 0)], total=4)]
    assert columns_of(log).count.tolist() == [1.0, 3.0]
    assert ms(times(*log).tpot[0]) == round(40 / 3, 6)


def test_some_chunks_without_a_count_share_what_is_left() -> None:
    log = [record(0, [chunk(100, 2), chunk(120, -1), chunk(140, -1)], total=8)]
    assert columns_of(log).count.tolist() == [2.0, 3.0, 3.0]


def test_not_streamed_shows_only_its_end() -> None:
    found = times(record(0, [chunk(400, 20)], streamed=False, plan=100))
    assert ms(found.e2e[0]) == 300.0
    assert all(math.isnan(x[0]) for x in (found.ttft, found.ttfa, found.tpot, found.icl_max))


def test_longest_gap_stays_within_a_request() -> None:
    found = times(
        record(0, [chunk(10), chunk(15), chunk(45)]),
        record(1, [], outcome=Outcome.TIMEOUT, plan=1),
        record(2, [chunk(900)], plan=2),
        record(3, [chunk(2000), chunk(2007)], plan=3),
    )
    assert [ms(v) for v in found.icl_max if not math.isnan(v)] == [30.0, 7.0]
    assert [math.isnan(v) for v in found.icl_max] == [False, True, True, False]


def test_order_of_the_records_does_not_matter() -> None:
    log = steady_log(80)
    assert compute(info(), log) == compute(info(), list(reversed(log)))


steps = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 9)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(0, 300))
def test_agrees_with_the_one_definition(gaps_and_counts: list[tuple[int, int]], wait: int) -> None:
    """contracts.slo.Timeline is the definition; the arrays must say the same."""
    at, chunks = 50 + wait, []
    for gap, count in gaps_and_counts:
        at += gap
        chunks.append(chunk(at, count))
    log = record(0, chunks, plan=50)
    line = Timeline(planned=0.05, arrival=0.05, chunks=[(c.t_ns / 1e9, c.num_tokens) for c in chunks])
    found = times(log)
    assert found.ttft[0] == pytest.approx(line.ttft_s, abs=1e-12)
    assert found.e2e[0] == pytest.approx(line.e2e_s, abs=1e-12)
    if len(chunks) > 1:
        assert found.tpot[0] == pytest.approx(line.tpot_s, abs=1e-12)
        itl = Gaps(columns_of([log]), spread=True)
        assert float(itl.gap @ itl.weight) / float(itl.weight.sum()) == pytest.approx(line.tpot_s, abs=1e-12)
        assert sorted(line.itl_s()) == pytest.approx(
            [float(g) for g, w in zip(itl.gap, itl.weight, strict=True) for _ in range(int(w))], abs=1e-12
        )


def test_ns_keeps_a_pencil_exact() -> None:
    assert ns(0.1) == 100_000
