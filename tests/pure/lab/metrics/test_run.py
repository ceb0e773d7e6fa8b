"""The numbers of a whole run: window, rates, flow, cautions."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from tests.pure.lab.metrics.logs import chunk, info, ns, record, steady_log

from paceline.contracts.artefact import ClientHealth, RequestRecord
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass
from paceline.lab.metrics import compute

CHAT = SloClass(ttft_s=0.1, tpot_s=0.02)


def codes(records: list[RequestRecord], *slo: SloClass, **rest: object) -> dict[str, bool]:
    """code -> voids the run"""
    return {c.code: c.invalidates for c in compute(info(*slo, **rest), records).cautions}


def test_window_is_by_planned_time_and_tokens_by_their_own() -> None:
    """Window 1 s to 2 s. Requests planned before it are warm-up; tokens count when they come."""
    log = [
        record(0, [chunk(950), chunk(1100), chunk(1200)], plan=900),  # warm-up: two of its tokens fall inside
        record(1, [chunk(1500), chunk(1600)], plan=1000),  # the window begins here
        record(2, [chunk(1990), chunk(2100), chunk(2200)], plan=1999),  # drained
        record(3, [chunk(2050)], plan=2000),  # the window has ended
    ]
    metrics = compute(info(start=1000, end=2000), log)
    assert metrics.whole.num_requests == 2
    assert metrics.output_tokens_per_s.value == pytest.approx(2 + 2 + 1)
    assert metrics.num_drained == 1
    assert metrics.offered_rps == pytest.approx(2.0)
    assert metrics.whole.request_rps == pytest.approx(2.0)


def test_tokens_of_failed_requests_were_made_too() -> None:
    log = [record(0, [chunk(100), chunk(200)], outcome=Outcome.STREAM_ERROR), record(1, [chunk(300)])]
    assert compute(info(end=1000), log).output_tokens_per_s.value == pytest.approx(3.0)


def test_in_flight_and_littles_law() -> None:
    """One request each 100 ms that stays 90 ms: 0.9 in flight, and rate x E2E says the same."""
    metrics = compute(info(end=10_000), steady_log(100))
    assert metrics.in_flight_mean == pytest.approx(0.9)
    assert metrics.littles_law_error == pytest.approx(0.0, abs=1e-9)
    assert "littles_law" not in {c.code for c in metrics.cautions}


def test_littles_law_sees_a_window_that_cuts_what_it_measures() -> None:
    """Requests of 3 s in a window of 10 s that began idle: a third of their time lies outside."""
    log = [record(i, [chunk(i * 100 + 50), chunk(i * 100 + 3000)], plan=i * 100) for i in range(100)]
    assert "littles_law" in codes(log, end=10_000)


def test_t6_the_clients_own_queue() -> None:
    """20 requests/s to a server that takes 100 ms each, one connection: from the plan TTFT grows, from the send it is
    100 ms, and the run says that the client was the queue."""
    log = []
    for i in range(200):
        send = i * 100.0
        log.append(record(i, [chunk(send + 100, 1)], plan=i * 50.0, send=send))
    metrics = compute(info(CHAT), log)
    table = metrics.whole.latency
    half = compute(info(CHAT, end=5_000), log).whole.latency
    assert table["ttft_send"].p95.value == pytest.approx(0.1)
    assert table["ttft"].p95.value is not None
    assert half["ttft"].p95.value is not None
    assert table["ttft"].p95.value > 1.9 * half["ttft"].p95.value
    bound = [c for c in metrics.cautions if c.code == "client_bound"]
    assert bound
    assert bound[0].invalidates
    assert "client's own queue" in bound[0].sentence


@pytest.mark.parametrize(
    ("lag", "ttft", "late"), [(5.0, 0.1, False), (5.1, 0.1, True), (9.9, 1.0, False), (10.1, 1.0, True)]
)
def test_lag_limit_is_5_ms_or_a_hundredth_of_the_target(lag: float, ttft: float, late: bool) -> None:
    log = [record(i, [chunk(i * 100 + 50)], plan=i * 100, send=i * 100 + (lag if i < 3 else 0)) for i in range(100)]
    assert ("client_bound" in codes(log, SloClass(ttft_s=ttft))) is late


def test_one_late_request_in_a_hundred_is_no_p99() -> None:
    log = [record(i, [chunk(i * 100 + 50)], plan=i * 100, send=i * 100 + (40 if i == 0 else 0)) for i in range(100)]
    assert "client_bound" not in codes(log, CHAT)


@pytest.mark.parametrize(("late", "void"), [(1, False), (2, True)])
def test_of_a_short_run_one_request_may_be_late(late: int, void: bool) -> None:
    log = [record(i, [chunk(i * 100 + 50)], plan=i * 100, send=i * 100 + (40 if i < late else 0)) for i in range(30)]
    assert ("client_bound" in codes(log, CHAT)) is void


def test_a_schedule_beside_a_closed_loop_is_gated_too() -> None:
    """Nine in ten requests are of a closed loop, sent as they are planned; the others have a schedule and are late."""

    def log(lag: float) -> list[RequestRecord]:
        return [
            record(i, [chunk(i * 100 + 80)], plan=i * 100, send=i * 100 + (lag if i % 10 == 0 else 0))
            for i in range(100)
        ]

    assert codes(log(20), CHAT, closed_loop=True)["client_bound"]
    assert "client_bound" not in codes(log(2), CHAT, closed_loop=True)
    alone = codes(log(0), CHAT, closed_loop=True, client=ClientHealth(offered_rps=10, achieved_rps=5))
    assert alone["client_bound"]


def test_a_late_client_is_told_why() -> None:
    log = [record(i, [chunk(i * 100 + 50)], plan=i * 100, send=i * 100 + 8) for i in range(100)]

    def sentence(lag_ms: float, loop_ms: float = 6) -> str:
        client = ClientHealth(
            offered_rps=10, achieved_rps=10, calibrated_rps=50, calibrated_lag_p99_ms=lag_ms, loop_lag_p99_ms=loop_ms
        )
        found = compute(info(CHAT, client=client), log).cautions
        return next(c.sentence for c in found if c.code == "client_bound")

    assert "8 ms; 5 ms is allowed" in sentence(0.4)
    assert "takes the client's cores" in sentence(0.4)
    assert "this client is slow" in sentence(7.0)
    assert "event loop was on time" in sentence(0.4, 0.5)


def test_a_client_that_could_not_reach_the_rate_against_nothing() -> None:
    client = ClientHealth(offered_rps=10, achieved_rps=10, calibrated_rps=8)
    assert codes(steady_log(100), CHAT, client=client)["client_bound"]
    assert "client_bound" not in codes(steady_log(100), CHAT, client=msgspec.structs.replace(client, calibrated_rps=50))


def test_a_lost_process_of_the_client_voids_the_run() -> None:
    """Its requests left no record, so they are in no denominator."""
    lost = compute(info(CHAT, status="partial", problems=["load process 0 was lost: no message"]), steady_log(100))
    assert {c.code for c in lost.cautions if c.invalidates} == {"client_lost"}


def test_failures_are_told_without_the_clients_own_doing() -> None:
    log = steady_log(10)
    log[0].outcome, log[1].outcome, log[2].outcome = Outcome.CLIENT_CANCEL, Outcome.TIMEOUT, Outcome.DISCONNECT
    found = next(c for c in compute(info(CHAT), log).cautions if c.code == "failures")
    assert found.sentence == "1 of 10 requests failed (timeout 1): never good."


def test_client_health_gates() -> None:
    log = steady_log(100)
    well = ClientHealth(offered_rps=10, achieved_rps=9.95, loop_lag_p99_ms=2, cpu_share_max=0.5)
    assert not {"client_bound", "client_busy", "client_loop_lag"} & set(codes(log, CHAT, client=well))
    slow = msgspec.structs.replace(well, achieved_rps=9.8)
    assert codes(log, CHAT, client=slow)["client_bound"]
    warm = msgspec.structs.replace(well, cpu_share_max=0.9, loop_lag_p99_ms=8)
    found = codes(log, CHAT, client=warm)
    assert found["client_busy"] is False
    assert found["client_loop_lag"] is False
    full = codes(log, CHAT, client=msgspec.structs.replace(well, cpu_share_max=0.99, loop_lag_p99_ms=80))
    assert full["client_busy"]
    assert full["client_loop_lag"]


def test_closed_loop_claims_nothing_about_a_rate() -> None:
    metrics = compute(info(CHAT, closed_loop=True), steady_log(100))
    assert metrics.offered_rps is None
    assert "closed_loop" in {c.code for c in metrics.cautions}
    assert metrics.whole.goodput_rps.lo is not None


def test_none_good_in_a_closed_loop_is_not_surely_none() -> None:
    found = compute(info(SloClass(ttft_s=0.01), closed_loop=True), steady_log(100)).whole.goodput_rps
    assert (found.value, found.lo) == (0.0, 0.0)
    assert found.hi == pytest.approx(0.37, abs=0.01)  # 3.7 of 100 requests in 10 s


def test_t22_one_request_is_not_a_throughput() -> None:
    metrics = compute(info(CHAT), [record(0, [chunk(50), chunk(60)])])
    assert "not_a_throughput" in {c.code for c in metrics.cautions}
    for estimate in (metrics.whole.goodput_rps, metrics.whole.good_tokens_per_s, metrics.output_tokens_per_s):
        assert estimate.lo is None
        assert "not a throughput" in estimate.reason


def test_t22_a_complete_answer_without_tokens_is_not_ok() -> None:
    empty = record(0, [], total=0, close=100)
    metrics = compute(info(CHAT), [empty, record(1, [chunk(50), chunk(60)])])
    assert metrics.whole.attainment.value == 0.5
    assert metrics.whole.outcomes == {"no_token": 1, "ok": 1}


def test_t10_a_second_record_of_a_request_is_a_hidden_retry() -> None:
    first = record(0, [], outcome=Outcome.HTTP_ERROR)
    assert codes([first, record(0, [chunk(50)])])["duplicate_id"]


def test_t7_equal_prompts_show() -> None:
    log = steady_log(3)
    for r, digest in zip(log, ("a", "b", "a"), strict=True):
        r.prompt_sha256 = digest
    assert "equal_prompts" in codes(log)


def test_lengths_that_were_not_had() -> None:
    asked = {"num_input_asked": 1024, "num_output_asked": 2}
    right = [record(i, [chunk(50), chunk(60)], prompt_tokens=1030, **asked) for i in range(10)]
    assert not {"prompt_length", "output_length"} & set(codes(right))
    wrong = [record(i, [chunk(50), chunk(60), chunk(70), chunk(80)], prompt_tokens=1107, **asked) for i in range(10)]
    assert {"prompt_length", "output_length"} <= set(codes(wrong))


def test_thin_percentiles_are_refused() -> None:
    few = compute(info(CHAT), steady_log(58)).whole.latency["ttft"]
    assert few.p95.value is None
    assert few.p95.reason == "58 samples; p95 needs 59"
    enough = compute(info(CHAT), steady_log(59)).whole.latency["ttft"]
    assert enough.p95.value == pytest.approx(0.05)
    assert enough.p99.value is None
    assert "thin_percentile" in codes(steady_log(59), CHAT)
    assert "thin_percentile" not in codes(steady_log(299), CHAT, end=100_000)


def test_an_interrupted_run_ends_where_it_stopped() -> None:
    """Planned for 100 s, stopped after 10: the rate is that of the 10."""
    log = steady_log(100)
    log += [record(200, [], plan=50_000, send=None, outcome=Outcome.NOT_SENT)]
    log[-1].t_send_ns = log[-1].t_close_ns = -1
    metrics = compute(info(CHAT, end=100_000, status="partial"), log)
    assert metrics.window.end_ns == ns(9_990)
    assert metrics.whole.goodput_rps.value == pytest.approx(100 / 9.99)
    assert "partial" in {c.code for c in metrics.cautions}


def test_not_sent_counts_as_bad() -> None:
    lost = record(1, [], plan=100, outcome=Outcome.NOT_SENT)
    lost.t_send_ns = lost.t_close_ns = -1
    metrics = compute(info(CHAT), [record(0, [chunk(50), chunk(60)]), lost])
    assert metrics.whole.attainment.value == 0.5
    assert "not_sent" in {c.code for c in metrics.cautions}


def test_turns_never_reached_are_told() -> None:
    lost = record(1, [], outcome=Outcome.NOT_SENT, turn=1)
    lost.t_plan_ns = lost.t_send_ns = lost.t_close_ns = -1
    metrics = compute(info(), [record(0, [chunk(50)]), lost])
    assert metrics.whole.num_requests == 1
    assert "unplaced" in {c.code for c in metrics.cautions}


def test_nothing_at_all() -> None:
    metrics = compute(info(CHAT), [])
    assert metrics.whole.num_requests == 0
    assert metrics.whole.attainment.value is None
    assert {c.code for c in metrics.cautions if c.invalidates} == {"no_requests"}
    assert compute(info(CHAT, end=0), steady_log(3)).whole.goodput_rps.value is None


def test_split_of_the_first_token_adds_up() -> None:
    log = steady_log(60)
    for i, r in enumerate(log):
        r.t_send_ns = r.t_plan_ns + ns(2)
        r.server = {"server_ms": 1.0, "queue_ms": 10.0, "prefill_ms": 20.0 + (i % 2) * 10}
        r.prompt_tokens, r.cached_tokens = 100, 50 if i % 2 == 0 else 0
    split = compute(info(CHAT), log).ttft_split
    means = {name: part.mean for name, part in split.items()}
    assert means["client_lag"] == pytest.approx(0.002)
    assert means["queue"] == pytest.approx(0.010)
    assert means["prefill"] == pytest.approx(0.025)
    assert sum(means[n] or 0 for n in ("client_lag", "network", "server", "queue", "prefill")) == pytest.approx(0.05)
    assert means["prefill_saved"] == pytest.approx(0.005)  # half of the requests saved 50 tokens of 0.2 ms
    assert compute(info(CHAT), steady_log(60)).ttft_split == {}


def test_every_estimate_tells_its_n_and_method() -> None:
    metrics = compute(info(CHAT), steady_log(100))
    p50 = metrics.whole.latency["ttft"].p50
    assert (p50.n, p50.unit) == (100, "s")
    assert "order statistic" in p50.method
    assert metrics.whole.goodput_rps.n == 100
    assert metrics.token_sources == {"chunk_usage": 100}


def test_the_reference_page_lists_every_caution() -> None:
    root = Path(__file__).parents[4]
    source = (root / "src/paceline/lab/metrics/cautions.py").read_text()
    page = (root / "docs/reference/lab-metrics.md").read_text()
    found = set(re.findall(r'code="(\w+)"', source))
    assert len(found) > 20
    assert {code for code in found if f"`{code}`" not in page} == set()
