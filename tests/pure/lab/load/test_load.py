"""Loads against the mock, which says what it sent and when: within this process, times compared with its log."""

import asyncio
import socket
import threading
import time

import pytest
from tests.fakes.lab.loads import HERE, FixedContent, every, load, outcomes, request, target_of, timeline

from paceline.contracts.artefact import NEVER, TokenSource
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import Faults
from paceline.lab.load import LoadOptions
from paceline.lab.mock import ChunkKind, Fault, Flavour, MockServer, Reply, Rule, Script, ScriptChunk, Service

SLACK_S = 10.0  # for a busy machine; the bounds below catch a clock or a start that is wrong by what the script says


def one(script, *, plan=None, **more):
    """The record of one request, the mock's log entry of it, and the whole result."""
    with MockServer(script) as mock:
        result = load(mock.url, plan or every(1.0, 1), **more)
        (entry,) = mock.wait_for(1)
    return result.records[0], entry, result


def test_times_are_those_the_server_saw():
    script = Script(service=Service(ttft_ms=60, tpot_ms=20, tokens_per_chunk=(5, 3)))
    record, entry, result = one(script, plan=every(1.0, 1, num_output_tokens=8))
    seen = [(chunk.t_ns + result.t0_ns, chunk.num_tokens) for chunk in record.chunks if chunk.num_tokens > 0]
    due = [(chunk.t_planned_ns, chunk.num_tokens) for chunk in entry.chunks if chunk.num_tokens > 0]
    assert [count for _, count in seen] == [count for _, count in due] == [5, 3]
    for (seen_ns, _), (due_ns, _) in zip(seen, due, strict=True):
        assert 0 <= seen_ns - due_ns < SLACK_S * 1e9  # one clock for both
    assert record.t_send_ns + result.t0_ns <= entry.t_arrival_ns <= record.t_headers_ns + result.t0_ns
    assert timeline(record).ttft_s >= 0.060
    assert len(timeline(record).itl_s()) == 3
    assert (record.prompt_tokens, record.completion_tokens) == (1, 8)
    assert record.token_source is TokenSource.CHUNK_USAGE
    assert 0 <= record.t_plan_ns <= record.t_send_ns < record.t_headers_ns <= record.t_close_ns
    assert record.prompt_sha256 == entry.prompt_sha256
    assert record.text is None


@pytest.mark.parametrize("flavour", list(Flavour))
def test_every_flavour_is_understood(flavour):
    with MockServer(Script(flavour=flavour)) as mock:
        target = target_of(mock.url, kind=flavour.value)
        result = load(mock.url, every(0.005, 4), target=target)
    assert outcomes(result) == ["ok"] * 4
    if flavour is not Flavour.OPENAI:
        assert {record.token_source for record in result.records} == {TokenSource.CHUNK_USAGE}
    assert {record.completion_tokens for record in result.records} == {4}


def test_a_cap_leaves_the_schedule_and_the_wait_is_in_the_latency():
    """20 requests/s at a server that takes 100 ms, one at a time: the queue grows in the client."""
    script = Script(service=Service(ttft_ms=100, slots=1))
    with MockServer(script) as mock:
        result = load(mock.url, every(0.05, 20), options=LoadOptions(num_processes=0, max_concurrency=1))
        entries = mock.wait_for(20)
    lines = [timeline(record) for record in result.records]
    assert max(sum(a.t_arrival_ns <= b.t_arrival_ns < a.t_end_ns for a in entries) for b in entries) == 1
    assert [record.t_plan_ns for record in result.records] == [i * 50_000_000 for i in range(20)]
    from_plan = [line.ttft_s for line in lines]
    assert from_plan[19] - from_plan[0] >= 19 * 0.05 - 0.1  # at least what the schedule ran ahead
    for line, entry in zip(lines, entries, strict=True):
        assert line.first_token - line.arrival < entry.ttft_s + SLACK_S
        assert line.ttft_s - (line.first_token - line.arrival) == pytest.approx(line.arrival - line.planned)
    assert result.health.lag_p99_ms > 500  # which is how a verdict knows that the client held them back


def test_a_slow_server_shifts_no_start():
    """200 requests/s at a server that takes a second."""
    with MockServer(Script(service=Service(ttft_ms=1000))) as mock:
        result = load(mock.url, every(0.005, 100))
        entries = mock.wait_for(100)
    assert outcomes(result) == ["ok"] * 100
    assert result.health.offered_rps == pytest.approx(200)
    assert result.health.achieved_rps > 0
    first_end = min(record.t_close_ns for record in result.records)
    assert all(record.t_send_ns < first_end for record in result.records)
    assert len({entry.connection for entry in entries}) == 100  # nobody waited for a connection
    starts = [record.t_send_ns for record in result.records]
    assert len(set(starts)) == 100  # not in lock-step


def test_one_attempt_is_one_record_and_nothing_is_tried_again():
    busy = Reply(status=503, message="too busy", code="queue_full", retry_after_s=7)
    script = Script(rules=(Rule(times=2, reply=busy),))
    with MockServer(script) as mock:
        result = load(mock.url, every(0.1, 3))
        entries = mock.wait_for(3)
    assert len(entries) == len(result.records) == 3
    assert outcomes(result) == ["rejected", "rejected", "ok"]
    record = result.records[0]
    assert (record.http_status, record.chunks) == (503, [])
    assert "queue_full" in record.reason
    assert "retry-after: 7" in record.reason


@pytest.mark.parametrize(("status", "outcome"), [(429, "rejected"), (400, "http_error"), (500, "http_error")])
def test_statuses(status, outcome):
    record, _, _ = one(Script(reply=Reply(status=status, message="no")))
    assert (record.outcome.value, record.http_status) == (outcome, status)
    assert record.reason.startswith(f"{status} ")


def test_what_quotes_the_prompt_is_not_kept():
    secret = "the quick brown fox jumps over the lazy dog"
    reply = Reply(status=400, message=f"cannot answer: {secret}")
    record, _, _ = one(Script(reply=reply), content=FixedContent({0: secret}))
    assert record.outcome is Outcome.HTTP_ERROR
    assert "fox" not in record.reason
    assert "quoted" in record.reason


TOKENS = tuple(ScriptChunk(delay_ms=1, text=word) for word in ("a ", "b ", "c "))


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        (Fault(error_after_chunks=2), "stream_error", "the engine failed"),
        (Fault(error_after_chunks=2, error_then_done=True), "stream_error", "the engine failed"),
        (Fault(cut_after_chunks=2), "stream_error", "cut"),
        (Fault(cut_after_chunks=2, reset=True), "stream_error", "cut"),
        (Fault(malformed_after_chunks=1), "ok", "stop"),
        (Fault(no_done=True), "ok", "stop"),
        (Fault(no_usage=True), "ok", "stop"),
        (Fault(comment_every_ms=1), "ok", "stop"),
        (Fault(header_line_every_ms=5), "ok", "stop"),
        (Fault(split_bytes=(1, 2, 3, 7)), "ok", "stop"),
    ],
)
def test_faults_of_the_server(fault, outcome, words):
    plan = every(1.0, 1, exact_output=False, num_output_tokens=3)
    record, _, _ = one(Script(reply=Reply(chunks=TOKENS, fault=fault)), plan=plan)
    assert record.outcome.value == outcome
    assert words in record.reason
    assert record.num_lost == (1 if fault.malformed_after_chunks else 0)
    if outcome == "ok":
        assert sum(chunk.num_tokens for chunk in record.chunks if chunk.num_tokens > 0) == 3


def test_a_stream_that_closes_without_a_token():
    record, _, _ = one(Script(reply=Reply(chunks=(ScriptChunk(kind=ChunkKind.ROLE),))))
    assert record.outcome is Outcome.TRUNCATED
    assert record.reason.startswith("no_token")


def test_an_answer_of_nothing_that_is_not_streamed():
    plan = every(1.0, 1, streamed=False)
    record, _, _ = one(Script(reply=Reply(chunks=(), completion_tokens=0)), plan=plan)
    assert record.outcome is not Outcome.OK


def test_an_answer_that_is_not_streamed():
    record, _, _ = one(Script(service=Service(ttft_ms=10, tpot_ms=10)), plan=every(1.0, 1, streamed=False))
    assert record.outcome is Outcome.OK
    (chunk,) = record.chunks
    assert (chunk.num_tokens, record.completion_tokens, record.streamed) == (4, 4, False)
    assert timeline(record).e2e_s >= 0.040
    assert timeline(record).tpot_s != timeline(record).tpot_s  # nan


def test_usage_that_differs_from_the_chunks_is_kept_as_it_is():
    script = Script(reply=Reply(chunks=TOKENS, completion_tokens=80))
    record, _, _ = one(script, plan=every(1.0, 1, exact_output=False))
    assert record.completion_tokens == 80
    assert sum(chunk.num_tokens for chunk in record.chunks if chunk.num_tokens > 0) == 3


def test_the_client_cancels_after_so_many_tokens_and_the_server_sees_it():
    plan = every(0.5, 2, num_output_tokens=200)
    plan.requests[0] = request(0, 0.0, num_output_tokens=200, faults=Faults(cancel_after_tokens=3))
    plan.requests[1] = request(1, 0.4, num_output_tokens=2)
    script = Script(service=Service(ttft_ms=10, tpot_ms=50, slots=1))
    with MockServer(script) as mock:
        result = load(mock.url, plan)
        cancelled, after = mock.wait_for(2)
    record = result.records[0]
    assert outcomes(result) == ["client_cancel", "ok"]
    assert sum(chunk.num_tokens for chunk in record.chunks if chunk.num_tokens > 0) == 3
    assert cancelled.outcome == "client_closed"
    assert cancelled.num_tokens_sent < 200  # generation stopped, and the slot was free for the next
    assert after.t_begin_ns >= cancelled.t_freed_ns >= cancelled.t_closed_ns > 0


def test_a_dropped_connection_and_a_timeout():
    never = Script(reply=Reply(fault=Fault(never_answer=True)))
    plan = every(0.05, 3)
    plan.requests[0] = request(0, 0.0, faults=Faults(disconnect_after_s=0.1))
    plan.requests[1] = request(1, 0.0, faults=Faults(timeout_s=0.2))
    plan.requests[2] = request(2, 0.0)
    with MockServer(never) as mock:
        result = load(mock.url, plan, options=LoadOptions(num_processes=0, timeout_s=0.4))
    assert outcomes(result) == ["disconnect", "timeout", "timeout"]
    for record, asked_s in zip(result.records, (0.1, 0.2, 0.4), strict=True):
        took_s = (record.t_close_ns - record.t_send_ns) / 1e9
        assert asked_s - 0.005 <= took_s < asked_s + SLACK_S  # the asked limit, no other
        assert record.t_headers_ns == NEVER


def test_what_is_open_after_the_drain_limit_is_cut_and_what_waits_was_not_sent():
    never = Script(reply=Reply(fault=Fault(hang_after_chunks=1), chunks=TOKENS))
    options = LoadOptions(num_processes=0, max_concurrency=2, drain_s=0.2)
    with MockServer(never) as mock:
        began = time.monotonic()
        result = load(mock.url, every(0.02, 5), options=options)
    assert time.monotonic() - began < 0.3 + SLACK_S
    assert outcomes(result) == ["timeout", "timeout", "not_sent", "not_sent", "not_sent"]
    assert result.records[4].t_plan_ns == 80_000_000
    assert result.records[4].t_send_ns == NEVER
    assert "drain" in result.records[0].reason
    assert not result.partial


def test_an_interrupted_load_is_partial_and_valid():
    stop = threading.Event()
    with MockServer(Script(service=Service(ttft_ms=30))) as mock:

        def progress(now):
            if now.num_done >= 3:
                stop.set()

        result = load(mock.url, every(0.1, 600), stop=stop, on_progress=progress)
    assert result.partial
    assert 3 <= len(result.records) < 600
    assert result.span_s < 60
    assert [record.id for record in result.records] == list(range(len(result.records)))
    assert set(outcomes(result)) <= {"ok", "client_cancel"}


def test_tenants_have_their_keys_and_those_without_one_use_the_runs():
    plan = every(0.05, 3)
    plan.requests[1] = request(1, 0.05, tenant="gold")
    plan.requests[2] = request(2, 0.1, tenant="silver")
    with MockServer(Script(api_keys=("run", "gold-key"))) as mock:
        target = target_of(mock.url, api_key="run", tenant_keys={"gold": "gold-key"})
        result = load(mock.url, plan, target=target)
        entries = mock.wait_for(3)
    assert outcomes(result) == ["ok", "ok", "ok"]
    assert [entry.key for entry in entries] == [0, 1, 0]
    assert [record.tenant for record in result.records] == [None, "gold", "silver"]


def test_a_server_that_is_not_there_fails_each_request_by_itself():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        result = load(f"http://127.0.0.1:{taken.getsockname()[1]}", every(0.01, 3))
    assert outcomes(result) == ["http_error"] * 3
    assert all(record.reason.startswith("connect: ") and record.http_status == 0 for record in result.records)


def test_ipv6():
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback")
    with MockServer(Script(), host="::1") as mock:
        assert outcomes(load(mock.url, every(0.01, 2))) == ["ok", "ok"]


def test_what_was_asked_for_is_validated_after_the_load():
    seen = []

    def validate(request, prompt, text, tool_calls, finish_reason):
        seen.append((request.id, prompt.messages, len(text.split()), tool_calls, finish_reason))
        return {"short": len(text.split()) <= 4}

    with MockServer(Script()) as mock:
        result = load(mock.url, every(0.01, 2), validate=validate)
        kept = load(mock.url, every(0.01, 1), options=LoadOptions(num_processes=0, keep_text=True))
    assert [record.valid for record in result.records] == [{"short": True}] * 2
    assert seen[1] == (1, [{"role": "user", "content": "word1"}], 4, [], "length")
    assert result.records[0].text is None
    assert len(kept.records[0].text.split()) == 4


def test_keep_alive_and_its_end():
    """A server that closes each connection after its answer is not a fault."""
    with MockServer(Script(reply=Reply(chunks=TOKENS, headers={"connection": "close"}))) as mock:
        result = load(mock.url, every(0.05, 3, exact_output=False))
    assert outcomes(result) == ["ok"] * 3


def test_the_start_is_told_and_joins_the_clocks():
    told = []
    with MockServer(Script()) as mock:
        result = load(mock.url, every(0.01, 1), on_start=told.append)
        (entry,) = mock.wait_for(1)
    assert told == [result.t0_ns]
    assert result.t0_ns <= entry.t_arrival_ns
    assert result.started_wall.endswith("+00:00")
    assert result.health.num_processes == 1


async def _serve_raw(answer: bytes) -> asyncio.Server:
    """A server that gives every request the same bytes and closes."""

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


EVENT = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (SSE_HEAD + b"connection: close\r\n\r\n" + EVENT + b"data: [DONE]\n\n", "ok"),  # ends with the connection
        (b"HTTP/1.1 100 Continue\r\n\r\n" + SSE_HEAD + b"content-length: %d\r\n\r\n" % len(EVENT) + EVENT, "ok"),
        (SSE_HEAD + b"content-length: 500\r\n\r\n" + EVENT, "stream_error"),  # less than was promised
        (SSE_HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(EVENT), EVENT), "stream_error"),
        (b"not http at all\r\n\r\n", "http_error"),
        (b"", "http_error"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n[]", "stream_error"),
        (b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", "http_error"),
    ],
)
def test_ways_an_answer_ends(answer, outcome):
    ready, over = threading.Event(), threading.Event()
    port = []

    async def serve():
        server = await _serve_raw(answer)
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await asyncio.to_thread(over.wait)
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        result = load(f"http://127.0.0.1:{port[0]}", every(0.01, 1, exact_output=False), options=HERE)
    finally:
        over.set()
        thread.join(10)
    assert outcomes(result) == [outcome]
