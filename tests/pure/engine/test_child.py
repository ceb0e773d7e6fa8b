"""A real child process behind the client port. Each test starts one, so there are few of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.fakes.builders import VOCAB, collect, make_request, scripted_engine
from tests.pure.engine.children import ROOT, argv, child, is_running, pull

from paceline.contracts.request import FinishReason
from paceline.engine.child_client import ChildClient
from paceline.errors import EngineDeadError, EngineError, ModelError, QueueFullError, RequestError


def test_a_child_gives_the_same_tokens_as_the_engine_here() -> None:
    requests = [make_request(i, [1, 2, 3, i], 6, temperature=1.0, seed=i) for i in range(6)]
    here = scripted_engine().run(*requests)
    with child() as client:
        assert client.info == {"model": "toy"}
        for request in requests:
            client.submit(request)
        there = collect(pull(client, 6))
        assert {i: f.token_ids for i, f in there.items()} == {i: f.token_ids for i, f in here.items()}
        assert all(f.last.usage is not None and f.last.timeline is not None for f in there.values())

        # what is wrong with one request is raised here, and hurts nobody
        with pytest.raises(RequestError, match="does not decode"):
            client.decisions("ten")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="vocabulary") as caught:
            client.submit(make_request(10, [1], sampling={"stop_token_ids": (VOCAB + 5,)}))
        assert caught.value.param == "stop_token_ids"
        client.submit(make_request(11, [1, 2, 3], 5, sampling={"ignore_eos": True}))
        assert collect(pull(client, 1))[11].reason == FinishReason.LENGTH

        stats = client.stats()
        assert stats.num_finished >= 7
        assert not stats.stalled
        assert client.decisions(11)
        assert client.reset_prefix_cache() is True
        assert list(client.outputs()) == []  # nothing is open: no waiting
        assert client.drain(5.0)
        with pytest.raises(EngineError, match="draining"):
            client.submit(make_request(12, [1]))
        pid = client.pid
        folder = client._child.folder
        assert os.stat(folder).st_mode & 0o777 == 0o700
    assert not is_running(pid)
    assert not os.path.exists(folder)
    with pytest.raises(EngineDeadError, match="closed"):
        client.submit(make_request(13, [1]))


def test_requests_enter_while_a_step_runs_and_the_queue_bound_is_raised_here() -> None:
    with child("slow") as client:
        for i in range(8):
            client.submit(make_request(i, [1, 2, i], 3, sampling={"ignore_eos": True}))
        with pytest.raises(RequestError, match="in use"):
            client.submit(make_request(3, [1]))
        refused = 0
        for i in range(8, 80):
            try:
                # long, so that they pile up however slowly this goes
                client.submit(make_request(i, [1, 2, i % 40], 200, sampling={"ignore_eos": True}))
            except QueueFullError:
                refused += 1
        assert refused > 0
        client.abort(5)
        client.abort(12345)
        outputs = collect(pull(client, 8))
        assert client.stats().num_waiting < 60
        assert {f.reason for i, f in outputs.items() if i < 5} <= {FinishReason.LENGTH}


def test_a_start_up_error_is_raised_as_itself() -> None:
    with pytest.raises(ModelError, match="cannot be read") as caught, child("fail"):
        pass
    assert caught.value.fix == "pull it again"


def test_a_child_that_ends_while_starting_is_quoted() -> None:
    with pytest.raises(EngineDeadError, match="exit status 3; no such device"), child("mute"):
        pass


def test_a_child_that_never_gets_ready_is_ended() -> None:
    with pytest.raises(EngineError, match="not get ready in time"):
        ChildClient(argv("hang"), environment={**os.environ, "PYTHONPATH": str(ROOT)}, start_timeout_s=0.5)


def test_a_program_that_does_not_exist_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="cannot be started"):
        ChildClient(["/no/such/program"])


def test_a_dying_child_ends_every_open_request_with_an_error() -> None:
    with child("exit") as client:
        for i in range(3):
            client.submit(make_request(i, [1, 2, i], 200, sampling={"ignore_eos": True}))
        os.kill(client.pid, signal.SIGUSR1)
        ended = collect(pull(client, 3))
        for finished in ended.values():
            assert finished.reason == FinishReason.ERROR
            assert "exit status 42; a device error nobody catches" in (finished.last.error or "")
        for call in (client.stats, lambda: list(client.outputs()), lambda: client.submit(make_request(9, [1]))):
            with pytest.raises(EngineDeadError):
                call()


def test_an_executor_failure_reaches_every_open_request() -> None:
    with child("crash") as client:
        # in one call: one by one, the first may have ended before the third comes
        client.submit_all([make_request(i, [1, 2, i], 200, sampling={"ignore_eos": True}) for i in range(3)])
        ended = collect(pull(client, 3))
        assert all("fell off the bus" in (f.last.error or "") for f in ended.values())


def test_a_killed_child_is_noticed_while_waiting() -> None:
    with child("slow") as client:
        client.submit(make_request(0, [1, 2], 200, sampling={"ignore_eos": True}))
        os.kill(client.pid, signal.SIGKILL)
        assert "signal 9" in (collect(pull(client, 1))[0].last.error or "")


# a child whose step never ends, or whose calls thread fails; both end soon if they are told to
STUCK = """
import sys, threading
from paceline.engine import child
from paceline.engine.loop import EngineCore
from tests.fakes.builders import scripted_engine
child._PARENT_GRACE_S = 0.2
def hang(plan):
    threading.Event().wait()
core = scripted_engine().core
core.executor.submit = hang
sys.exit(child.serve_child(core, sys.argv[1]))
"""
NO_CALLS = """
import sys
from paceline.engine import child
from tests.fakes.builders import scripted_engine
def fail(self, call):
    raise SystemExit(1)
child._Server._answer = fail
sys.exit(child.serve_child(scripted_engine().core, sys.argv[1]))
"""


def test_a_child_that_can_answer_no_calls_ends() -> None:
    with child(command=[sys.executable, "-c", NO_CALLS]) as client, pytest.raises(EngineDeadError, match="died"):
        client.submit(make_request(0, [1, 2]))


def test_a_call_to_a_dead_child_says_so_and_leaves_nothing_open() -> None:
    for call in ("stats", "submit"):
        with child("slow") as client:
            client.submit(make_request(0, [1, 2], 200, sampling={"ignore_eos": True}))
            os.kill(client.pid, signal.SIGKILL)
            os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
            with pytest.raises(EngineDeadError, match="signal 9"):
                client.stats() if call == "stats" else client.submit(make_request(1, [1, 2]))
            assert not client._open
            ended = collect(list(client.outputs()))
            assert {i: f.reason for i, f in ended.items()} == {0: "error"}


def test_a_close_ends_what_is_open_with_an_error() -> None:
    with child("slow") as client:
        for i in range(2):
            client.submit(make_request(i, [1, 2, i], 200, sampling={"ignore_eos": True}))
    ended = collect(list(client.outputs()))
    assert {i: f.reason for i, f in ended.items()} == {0: "error", 1: "error"}
    assert "closed" in (ended[0].last.error or "")
    with pytest.raises(EngineDeadError, match="closed"):
        list(client.outputs())


@pytest.mark.parametrize(
    ("command", "busy"),
    [(argv("serve"), False), (argv("slow"), True), ([sys.executable, "-c", STUCK], True)],
    ids=["idle", "busy", "stuck"],
)
def test_a_child_does_not_outlive_its_parent(command: list[str], busy: bool) -> None:
    code = (
        "import sys, time\n"
        "from paceline.engine import ChildClient\n"
        "from tests.fakes.builders import make_request\n"
        f"client = ChildClient({command!r})\n"
        f"{busy} and client.submit(make_request(0, [1, 2], 200, sampling={{'ignore_eos': True}}))\n"
        "print(client.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        parent.wait()
        end = time.monotonic() + 10
        while is_running(pid):
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError("the child is an orphan")
            time.sleep(0.05)
