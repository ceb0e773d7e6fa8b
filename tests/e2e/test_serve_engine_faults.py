"""The engine's process dies, hangs or fails behind a live server."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from tests.fakes.server_process import MODEL, PATIENCE_S, RunningServer, eventually, running_server

LONG = {"model": MODEL, "prompt": "once", "stream": True, "max_tokens": 400, "ignore_eos": True}


class Streams:
    """Several streams read by threads, each to its end."""

    def __init__(self, server: RunningServer, count: int) -> None:
        self.lines: list[list[str]] = [[] for _ in range(count)]
        self.ends: list[float] = [0.0] * count
        self._threads = [threading.Thread(target=self._read, args=(server, i)) for i in range(count)]
        for thread in self._threads:
            thread.start()
        eventually(lambda: all(self.lines))

    def _read(self, server: RunningServer, index: int) -> None:
        with httpx.stream("POST", f"{server.api_url}/completions", json=LONG, timeout=PATIENCE_S) as response:
            for line in response.iter_lines():
                if line:
                    self.lines[index].append(line)
        self.ends[index] = time.monotonic()

    def wait(self) -> list[dict[str, Any]]:
        """The last event of each."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
        ends = [lines[-1].removeprefix("data: ") for lines in self.lines]
        return [{} if end == "[DONE]" else json.loads(end) for end in ends]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server({"step_ms": 20.0}) as running:
        yield running


def test_every_stream_hears_of_the_death_and_the_engine_comes_back(server: RunningServer) -> None:
    streams = Streams(server, 3)
    first = psutil.Process(server.child_pid)
    killed = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    last = streams.wait()
    assert [set(event) for event in last] == [{"error"}] * 3
    assert all("engine" in event["error"]["message"] for event in last)
    assert max(streams.ends) - killed < 20.0  # it is a fraction of a second; this bound is against hangs only
    eventually(lambda: server.ready()["restarts"] == 1)
    server.wait_ready()
    assert server.child_pid != first.pid
    answer = server.complete()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] >= 1
    assert "signal 9" in server.log()


def test_while_there_is_no_engine_requests_are_answered_with_503() -> None:
    with running_server() as server:
        server.control("hold")  # the next engine
        os.kill(server.child_pid, signal.SIGKILL)
        eventually(lambda: not server.ready()["ready"])
        assert server.ready()["reason"]
        refused = server.complete()
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.api_url}/models").status_code == 200
        server.control("")
        server.wait_ready()
        assert server.complete().status_code == 200


def test_an_engine_that_says_last_words_is_quoted(server: RunningServer) -> None:
    server.control("die")
    answer = server.complete()
    assert answer.status_code == 503
    assert "the device fell off the bus" in answer.json()["error"]["message"]
    server.control("")
    server.wait_ready()


def test_no_restart_ends_the_server() -> None:
    with running_server({"step_ms": 20.0}, restart=False) as mortal:
        streams = Streams(mortal, 2)
        os.kill(mortal.child_pid, signal.SIGKILL)
        assert [set(event) for event in streams.wait()] == [{"error"}] * 2
        assert mortal.process.wait(PATIENCE_S) == 1
        assert "is not started again" in mortal.log()


def test_an_engine_that_keeps_dying_is_given_up() -> None:
    with running_server(max_restarts=1) as server:
        for _ in range(2):
            server.wait_ready()
            os.kill(server.child_pid, signal.SIGKILL)
            eventually(lambda: not server.is_ready())
        assert server.process.wait(PATIENCE_S) == 1
        assert "keeps dying" in server.log()


def test_a_stuck_step_turns_readiness_red_until_it_ends() -> None:
    with running_server(stall_limit_s=0.4) as server:
        server.control("hang")
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(server.complete()))
        thread.start()
        eventually(lambda: not server.ready()["ready"])
        assert "step" in server.ready()["reason"]
        assert httpx.get(f"{server.base_url}/health").status_code == 200
        eventually(lambda: "admit" in server.log().lower())  # the last decisions are in the log
        assert "a step has been running" in server.log()
        server.control("")
        thread.join(PATIENCE_S)
        assert answers[0].status_code == 200
        server.wait_ready()
        assert server.ready()["restarts"] == 0


def test_a_poisoned_request_harms_no_other(server: RunningServer) -> None:
    streams = Streams(server, 2)
    poisoned = server.complete("POISON and more")
    assert poisoned.status_code >= 500
    assert poisoned.json()["error"]
    assert streams.wait() == [{}, {}]  # [DONE]
    assert server.ready()["restarts"] == 0
    assert server.complete().status_code == 200
