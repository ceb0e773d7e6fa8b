"""Closed loops and conversations: what comes next when an answer has ended. Against the mock, within this process."""

import asyncio
import time

from tests.fakes.lab.loads import HERE, FixedContent, SmallPlan, load, outcomes, request, target_of

from paceline.contracts.workload import Faults
from paceline.lab.load.driver import Driver
from paceline.lab.load.pool import Pool
from paceline.lab.load.prepare import Preparation
from paceline.lab.mock import Fault, Match, MockServer, Reply, Rule, Script, Service


def test_a_closed_loop_keeps_its_slots_busy_and_plans_what_it_sends():
    requests = [request(i, None, loop_slots=3) for i in range(12)]
    with MockServer(Script(service=Service(ttft_ms=20))) as mock:
        result = load(mock.url, SmallPlan(requests=requests, span_s=0.0))
        entries = mock.wait_for(12)
    assert outcomes(result) == ["ok"] * 12
    assert all(record.t_plan_ns == record.t_send_ns for record in result.records)
    at_once = [sum(a.t_arrival_ns <= b.t_arrival_ns < a.t_end_ns for a in entries) for b in entries]
    assert max(at_once) == 3
    assert len({entry.connection for entry in entries}) <= 6  # connections are used again
    assert result.health.offered_rps == 0


def test_a_closed_loop_begins_nothing_after_its_time():
    requests = [request(i, None, loop_slots=1) for i in range(1000)]
    with MockServer(Script(service=Service(ttft_ms=200))) as mock:
        result = load(mock.url, SmallPlan(requests=requests, span_s=1.0))
    assert 1 <= len(result.records) <= 6
    assert all(record.t_send_ns < 1e9 for record in result.records)
    assert not result.partial


class EarlyLoop(asyncio.SelectorEventLoop):
    """Its timers ring up to a millisecond before their time, as uvloop's may."""

    def call_later(self, delay, callback, *args, **kwargs):
        return super().call_later(max(0.0, delay - 0.001), callback, *args, **kwargs)


def test_a_closed_loop_begins_nothing_before_its_time():
    """A request from before the start is outside the window, so no number would tell of it."""
    plan = SmallPlan(requests=[request(i, None, loop_slots=4) for i in range(8)], span_s=0.0)

    async def drive(url):
        seen = []
        pool = Pool(target_of(url), asyncio.get_running_loop())
        driver = Driver(pool, HERE, seen.append, span_ns=0)
        driver.add(Preparation(target_of(url), plan, FixedContent()).jobs())
        await asyncio.wait_for(driver.run(time.monotonic_ns() + 20_000_000), 20)
        pool.close()
        await asyncio.sleep(0.01)  # connections say goodbye
        return [done.record.t_plan_ns for done in seen]

    with MockServer(Script()) as mock, asyncio.Runner(loop_factory=EarlyLoop) as runner:
        planned = runner.run(drive(mock.url))
    assert len(planned) == 8
    assert min(planned) >= 0


def conversation(first, session, turns, **more):
    return [
        request(
            first + turn,
            0.0 if turn == 0 else None,
            session=session,
            turn=turn,
            last_turn=turn == turns - 1,
            think_s=0.05,
            **more,
        )
        for turn in range(turns)
    ]


def test_a_session_goes_on_from_the_real_answer_after_its_think_time():
    content = FixedContent()
    plan = SmallPlan(requests=conversation(0, 7, 3), span_s=30.0)
    with MockServer(Script(service=Service(ttft_ms=5))) as mock:
        result = load(mock.url, plan, content=content)
        entries = mock.wait_for(3)
    assert outcomes(result) == ["ok"] * 3
    first, second, third = result.records
    assert second.t_plan_ns == first.t_close_ns + 50_000_000
    assert second.t_send_ns >= second.t_plan_ns
    assert [message["role"] for message in content.histories[2]] == ["user", "assistant", "user", "assistant"]
    answers = [message["content"] for message in content.histories[2] if message["role"] == "assistant"]
    assert all(len(answer.split()) == 4 for answer in answers)
    assert [entry.prompt_tokens for entry in entries] == [1, 6, 11]
    assert [record.text for record in result.records] == [None] * 3
    assert third.prompt_sha256 == entries[2].prompt_sha256


def test_a_session_ends_with_a_turn_that_failed():
    plan = SmallPlan(requests=conversation(0, 1, 3) + conversation(3, 2, 1), span_s=30.0)
    script = Script(rules=(Rule(match=Match(contains="word0"), reply=Reply(status=500)),))
    with MockServer(script) as mock:
        result = load(mock.url, plan)
    assert outcomes(result) == ["http_error", "not_sent", "not_sent", "ok"]
    assert "http_error" in result.records[1].reason


def test_a_client_that_has_gone_says_nothing_more_and_blames_nobody():
    """Its later turns were never due: they are no failures of the server."""
    turns = conversation(0, 1, 3)
    turns[0] = request(0, 0.0, session=1, last_turn=False, faults=Faults(disconnect_after_s=0.05))
    script = Script(rules=(Rule(match=Match(contains="word0"), reply=Reply(fault=Fault(never_answer=True))),))
    with MockServer(script) as mock:
        result = load(mock.url, SmallPlan(requests=turns + conversation(3, 2, 1), span_s=30.0))
    assert outcomes(result) == ["disconnect", "ok"]


def test_slots_of_a_closed_loop_take_jobs_that_come_later():
    late = [request(i, None, loop_slots=3) for i in range(9)]

    async def drive(url):
        loop, seen = asyncio.get_running_loop(), []
        pool = Pool(target_of(url), loop)
        driver = Driver(pool, HERE, seen.append, span_ns=0)
        jobs = list(Preparation(target_of(url), SmallPlan(requests=late, span_s=0.0), FixedContent()).jobs())
        driver.add(jobs[:1], more=True)
        running = asyncio.ensure_future(driver.run(time.monotonic_ns()))
        while not seen:
            await asyncio.sleep(0.01)
        driver.add(jobs[1:], more=False)
        at_once = driver.num_in_flight
        await asyncio.wait_for(running, 20)
        pool.close()
        await asyncio.sleep(0.01)  # connections say goodbye
        return at_once, [done.record.outcome.value for done in seen]

    with MockServer(Script(service=Service(ttft_ms=20))) as mock:
        at_once, ended = asyncio.run(drive(mock.url))
    assert at_once == 3
    assert ended == ["ok"] * 9


def test_turns_after_the_end_of_the_load_are_not_due():
    plan = SmallPlan(requests=conversation(0, 1, 50), span_s=0.2)
    with MockServer(Script()) as mock:
        result = load(mock.url, plan)
    assert 1 <= len(result.records) <= 5
    assert set(outcomes(result)) == {"ok"}
