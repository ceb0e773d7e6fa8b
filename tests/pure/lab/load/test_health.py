import pytest
from tests.fakes.lab.loads import SmallPlan, every, request

from paceline.contracts.artefact import NEVER, RequestRecord
from paceline.errors import ConfigError
from paceline.lab.load import LoadOptions
from paceline.lab.load.generator import WorkerProgress, WorkerStats
from paceline.lab.load.health import client_health
from paceline.lab.load.progress import ProgressBoard
from paceline.lab.load.result import without_prompt
from paceline.lab.load.run import num_processes

S = 1_000_000_000


def sent(number, plan_s, send_s):
    send = NEVER if send_s is None else round(send_s * S)
    return RequestRecord(id=number, stream="s", t_plan_ns=round(plan_s * S), t_send_ns=send)


def test_a_client_that_keeps_its_schedule_reaches_what_it_offered():
    records = [sent(i, i / 10, i / 10 + 0.001) for i in range(100)]
    health = client_health(records, [WorkerStats()], scheduled=set(range(100)), span_s=10.0)
    assert health.offered_rps == health.achieved_rps == pytest.approx(10)
    assert health.lag_p50_ms == health.lag_max_ms == pytest.approx(1.0)


def test_a_client_that_falls_behind_does_not():
    """10 requests/s for 10 s, sent at 5 requests/s."""
    records = [sent(i, i / 10, i / 5) for i in range(100)]
    health = client_health(records, [WorkerStats()], scheduled=set(range(100)), span_s=10.0)
    assert health.achieved_rps == pytest.approx(100 / 19.8)
    assert health.lag_max_ms == pytest.approx(9900)


def test_what_was_never_sent_was_not_achieved_and_turns_do_not_count():
    records = [sent(0, 0, 0), sent(1, 1, None), sent(2, 1.5, 1.5)]
    health = client_health(records, [], scheduled={0, 1}, span_s=2.0)
    assert (health.offered_rps, health.achieved_rps) == (1.0, 0.5)


def test_processes_add_up():
    stats = [
        WorkerStats(cpu_s=1, wall_s=4, num_chunks=1000, connections_peak=3, loop_lag_p99_ms=1),
        WorkerStats(cpu_s=2, wall_s=4, num_chunks=1000, connections_peak=4, loop_lag_p99_ms=5),
    ]
    health = client_health([], stats, scheduled=set(), span_s=0.0)
    assert (health.num_processes, health.connections_peak, health.loop_lag_p99_ms) == (2, 7, 5)
    assert health.cpu_share_max == 0.5
    assert health.cpu_us_per_chunk == pytest.approx(1500)


def test_how_many_processes():
    assert num_processes(every(0.1, 100), LoadOptions()) == 1
    assert num_processes(every(0.1, 100), LoadOptions(num_processes=0)) == 0
    loop = SmallPlan(requests=[request(0, None, loop_slots=2)], span_s=1e-6)
    assert num_processes(loop, LoadOptions()) == 1
    with pytest.raises(ConfigError):
        num_processes(loop, LoadOptions(num_processes=2))
    assert num_processes(every(1e-6, 100), LoadOptions(max_concurrency=1)) == 1


@pytest.mark.parametrize(
    "wrong", [{"num_processes": -1}, {"max_concurrency": 0}, {"timeout_s": 0}, {"drain_s": float("nan")}]
)
def test_options_out_of_range(wrong):
    with pytest.raises(ConfigError):
        LoadOptions(**wrong)


def test_progress_of_several_workers():
    board = ProgressBoard(num_planned=10, span_s=5.0)
    board.begin()
    board.take(0, WorkerProgress(num_sent=3, num_in_flight=1, num_done=2, ttft_s=[0.1, 0.3]))
    board.take(1, WorkerProgress(num_sent=2, num_in_flight=2, num_failed=1, ttft_s=[0.2]))
    board.take(0, WorkerProgress(num_sent=4, num_in_flight=2, num_done=2, ttft_s=[]))
    now = board.now()
    assert (now.num_sent, now.num_in_flight, now.num_done, now.num_failed) == (6, 4, 2, 1)
    assert (now.ttft_p50_s, now.ttft_p95_s, now.tpot_p50_s) == (0.2, 0.3, None)
    assert 0 <= now.time_left_s <= 5
    assert not now.draining


def test_only_quotations_are_taken_out():
    body = b'{"messages":[{"content":"tell me about the harbour of the old town"}]}'
    assert without_prompt("400 bad: max_tokens is too large", body) == "400 bad: max_tokens is too large"
    assert "harbour" not in without_prompt("400 bad: got 'tell me about the harbour of the old town'", body)
    assert without_prompt("short", body) == "short"
