"""The load generator with its own processes: against the mock as a process, and against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from tests.fakes.lab.loads import FixedContent, SmallPlan, every, load, request, target_of, timeline
from tests.fakes.server_process import eventually, running_server

from paceline.contracts.slo import Outcome
from paceline.contracts.workload import RenderedPrompt
from paceline.errors import LabError
from paceline.lab.load import HttpTokenCounter, LoadOptions, calibrate_client, probe, processes, run_load
from paceline.lab.mock import Fault, MockProcess, Reply, Script, Service

ROOT = Path(__file__).resolve().parents[2]


def load_children() -> list[psutil.Process]:
    """Load processes of this process that run."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "paceline.lab.load.worker" in child.cmdline()]


def test_two_processes_share_one_schedule():
    with MockProcess(Script(service=Service(ttft_ms=5, tpot_ms=1))) as mock:
        result = load(mock.url, every(0.005, 200), options=LoadOptions(num_processes=2))
        entries = mock.wait_for(200)
    assert {record.outcome for record in result.records} == {Outcome.OK}
    assert [record.id for record in result.records] == list(range(200))
    assert [record.t_plan_ns for record in result.records] == [i * 5_000_000 for i in range(200)]
    assert {record.worker for record in result.records} == {0, 1}
    assert result.health.num_processes == 2
    assert result.health.cpu_share_max > 0
    by_prompt = {entry.prompt_sha256: entry for entry in entries}
    for record in result.records:  # one clock: what was sent here arrived there
        entry = by_prompt[record.prompt_sha256]
        assert record.t_send_ns + result.t0_ns <= entry.t_arrival_ns
        assert record.chunks[0].t_ns + result.t0_ns >= entry.t_begin_ns
    assert not load_children()


def test_sessions_go_on_in_a_process_of_their_own():
    turns = [request(i, 0.0 if i == 0 else None, session=1, turn=i, last_turn=i == 2, think_s=0.02) for i in range(3)]
    content = FixedContent()
    with MockProcess() as mock:
        result = load(mock.url, SmallPlan(requests=turns, span_s=30.0), content=content, options=LoadOptions())
        entries = mock.wait_for(3)
    assert [record.outcome for record in result.records] == [Outcome.OK] * 3
    assert result.records[2].t_plan_ns == result.records[1].t_close_ns + 20_000_000
    assert [entry.prompt_tokens for entry in entries] == [1, 6, 11]
    assert len(content.histories[2]) == 4


def test_a_closed_loop_with_more_jobs_than_are_held_begins_before_all_are_there(monkeypatch):
    """A load process stops reading at some number of jobs: the start must not wait for those beyond it."""
    monkeypatch.setattr(processes, "HELD_JOBS", 5)
    requests = [request(i, None, loop_slots=8) for i in range(40)]
    with MockProcess() as mock:
        result = load(mock.url, SmallPlan(requests=requests, span_s=0.0), options=LoadOptions(num_processes=1))
    assert [record.outcome for record in result.records] == [Outcome.OK] * 40
    assert not load_children()


def test_answers_are_validated_from_a_process_too():
    def validate(_request, _prompt, text, _tool_calls, _finish_reason):
        return {"four_words": len(text.split()) == 4}

    with MockProcess() as mock:
        result = load(mock.url, every(0.01, 3), options=LoadOptions(num_processes=1), validate=validate)
    assert [record.valid for record in result.records] == [{"four_words": True}] * 3
    assert all(record.text is None for record in result.records)


def test_a_process_that_is_lost_leaves_what_it_had():
    with MockProcess(Script(service=Service(ttft_ms=2))) as mock:

        def kill_one(now):
            children = load_children()
            if now.num_done > 20 and len(children) == 2:
                children[0].kill()

        result = load(mock.url, every(0.02, 200), options=LoadOptions(num_processes=2), on_progress=kill_one)
    assert result.partial
    assert len(result.problems) == 1
    assert 20 < len(result.records) < 200
    assert not load_children()


def test_stopping_gives_a_partial_result():
    stop = threading.Event()
    with MockProcess(Script(reply=Reply(fault=Fault(never_answer=True)))) as mock:
        result = load(
            mock.url,
            every(0.05, 2000),
            options=LoadOptions(num_processes=2),
            stop=stop,
            on_progress=lambda now: stop.set() if now.num_sent > 4 else None,
        )
    assert result.partial
    assert {record.outcome for record in result.records} == {Outcome.CLIENT_CANCEL}
    assert result.span_s < 100
    assert not load_children()


@pytest.mark.parametrize("processes", [0, 2])
def test_ctrl_c_ends_a_program_with_what_it_has(processes):
    program = textwrap.dedent(
        f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background programs with it ignored
        from tests.fakes.lab.loads import every, load
        from paceline.lab.load import LoadOptions
        def show(now):
            print(now.num_done, flush=True)
        result = load(sys.argv[1], every(0.02, 100000), options=LoadOptions(num_processes={processes}),
                      on_progress=show)
        print("partial" if result.partial else "whole", len(result.records), flush=True)
        """
    )
    with (
        MockProcess() as mock,
        subprocess.Popen(
            [sys.executable, "-c", program, mock.url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as child,
    ):
        assert child.stdout is not None
        while int(child.stdout.readline()) < 3:
            pass
        children = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGINT)
        rest = child.stdout.read().split()
        assert child.wait(60) == 0
    assert len(children) == processes
    assert rest[-2] == "partial"
    assert int(rest[-1]) >= 3
    eventually(lambda: not any(p.is_running() for p in children))


def test_a_program_that_dies_leaves_no_process():
    program = textwrap.dedent(
        """
        import sys
        from tests.fakes.lab.loads import every, load
        from paceline.lab.load import LoadOptions
        load(sys.argv[1], every(0.02, 100000), options=LoadOptions(num_processes=1),
             on_progress=lambda now: print(now.num_done, flush=True))
        """
    )
    with MockProcess() as mock:
        with subprocess.Popen(
            [sys.executable, "-c", program, mock.url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as child:
            assert child.stdout is not None
            while int(child.stdout.readline()) < 1:
                pass
            (orphan,) = psutil.Process(child.pid).children()
            child.kill()
        eventually(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE)


class Broken(FixedContent):
    def render(self, request, history=None):
        if request.id == 2:
            raise LabError("this prompt cannot be rendered")
        return super().render(request, history)


def test_content_that_cannot_be_rendered_ends_the_load_before_it_begins():
    with MockProcess() as mock:
        with pytest.raises(LabError, match="cannot be rendered"):
            load(mock.url, every(0.01, 3), options=LoadOptions(num_processes=2), content=Broken())
        assert not mock.log()
    assert not load_children()


def test_the_client_finds_its_own_limit():
    found = calibrate_client(100, seconds=0.5, options=LoadOptions(num_processes=1))
    assert found.offered_rps == pytest.approx(120)
    assert (found.num_failed, found.health.num_processes) == (0, 1)
    assert found.rps > 0


def test_our_own_server():
    """Probe, count and load, with nothing told."""

    async def look(url):
        target = await probe(url)
        async with HttpTokenCounter(target) as counter:
            return target, await counter.count(["hello there"]), await counter.count_chat([user("hello there")])

    def user(text):
        return {"role": "user", "content": text}

    class Chats:
        def render(self, request, history=None):
            return RenderedPrompt(messages=[user(f"word {request.id}")])

    with running_server({"kind": "simulated", "fixed_ms": 2.0}) as server:
        target, (num_text,), num_chat = asyncio.run(look(server.api_url))
        info = target.info
        assert (info.kind, info.tokenize, info.ignore_eos, info.timings) == ("paceline", "prompt", True, True)
        assert (info.token_ids, info.chunk_usage, info.cached_tokens) == (True, True, True)
        assert info.max_model_len == 512
        assert info.reset_prefix_cache
        assert num_chat > num_text > 0
        plan = every(0.02, 30, num_output_tokens=6)
        result = run_load(target, plan, Chats(), LoadOptions(num_processes=1))
    for record in result.records:
        assert (record.outcome, record.completion_tokens) == (Outcome.OK, 6)
        assert record.server.keys() >= {"queue_ms", "prefill_ms"}
        assert record.prompt_tokens > 0
        assert record.cached_tokens >= 0
        assert timeline(record).ttft_s * 1e3 >= record.server["prefill_ms"] * 0.5  # it holds what the server measured
    assert msgspec.json.encode(result.records)


def test_a_target_that_is_no_server():
    with pytest.raises(LabError):
        asyncio.run(probe(target_of("http://127.0.0.1:9").info.url, timeout_s=5))
