from __future__ import annotations

import threading
import time
from collections import deque

import pytest
from tests.fakes.builders import collect, make_request, scripted_engine

from paceline.contracts.request import FinishReason, RequestOutput
from paceline.engine.client import InProcessClient
from paceline.engine.clock import WallClock
from paceline.engine.loop import EngineCore
from paceline.errors import EngineError, RequestError


def requests(count: int = 4) -> list:  # type: ignore[type-arg]
    return [make_request(i, [1, 2, 3, i], 6, temperature=1.0, seed=i) for i in range(count)]


def test_pulling_outputs_runs_the_engine() -> None:
    expected = scripted_engine().run(*requests())
    client = InProcessClient(scripted_engine().core)
    for request in requests():
        client.submit(request)
    outputs = []
    while batch := list(client.outputs()):
        outputs.extend(batch)
    assert {i: f.token_ids for i, f in collect(outputs).items()} == {i: f.token_ids for i, f in expected.items()}
    assert list(client.outputs()) == []
    client.close()


def test_a_timeout_returns_between_steps() -> None:
    built = scripted_engine(max_wait_ms=50.0)
    client = InProcessClient(built.core)
    client.submit(make_request(0, [1, 2, 3]))
    assert list(client.outputs(timeout_s=0.01)) == []
    assert built.clock.now() == pytest.approx(0.01)
    assert list(client.outputs()) != []
    client.close()


def test_draining_takes_nothing_new_in_and_keeps_the_outputs() -> None:
    client = InProcessClient(scripted_engine().core)
    for request in requests():
        client.submit(request)
    assert client.drain(10.0)
    with pytest.raises(EngineError, match="draining"):
        client.submit(make_request(9, [1]))
    assert len(collect(list(client.outputs()))) == 4
    client.close()


def test_a_drain_that_runs_out_of_time_says_so() -> None:
    client = InProcessClient(scripted_engine().core)
    for request in requests():
        client.submit(request)
    assert not client.drain(0.002)  # two steps of 1 ms
    assert client.drain(1.0)
    client.close()


def background(**options: object) -> InProcessClient:
    built = scripted_engine(**options)  # type: ignore[arg-type]
    return InProcessClient(EngineCore(built.scheduler, built.executor, WallClock()), background=True)


def test_a_background_engine_serves_many_threads() -> None:
    expected = scripted_engine().run(*requests(12))
    client = background()
    threads = [threading.Thread(target=client.submit, args=(request,)) for request in requests(12)]
    for thread in threads:
        thread.start()
    outputs = []
    while sum(o.finish is not None for o in outputs) < 12:
        outputs.extend(client.outputs(timeout_s=5.0))
    for thread in threads:
        thread.join()
    assert {i: f.token_ids for i, f in collect(outputs).items()} == {i: f.token_ids for i, f in expected.items()}
    assert client.stats().num_finished == 12
    client.close()
    with pytest.raises(EngineError, match="closed"):
        client.submit(make_request(99, [1]))


def test_a_background_engine_wakes_up_for_a_batch_wait() -> None:
    client = background(max_wait_ms=5.0)
    client.submit(make_request(0, [1, 2, 3], 2))
    assert list(client.outputs(timeout_s=5.0)) != []
    client.close()


def test_an_abort_ends_only_its_own_request() -> None:
    client = InProcessClient(scripted_engine().core)
    for request in requests():
        client.submit(request)
    client.abort(2)
    client.abort(77)
    assert client.drain(1.0)
    found = collect(list(client.outputs()))
    assert [i for i, f in found.items() if f.reason == FinishReason.ABORT] == [2]
    client.close()


def test_an_id_in_use_is_refused_and_the_first_one_lives() -> None:
    client = InProcessClient(scripted_engine().core)
    client.submit(make_request(0, [1, 2]))
    with pytest.raises(RequestError, match="in use"):
        client.submit(make_request(0, [3, 4]))
    assert client.drain(1.0)
    assert len(collect(list(client.outputs()))) == 1
    client.close()


def pull_in_a_thread(client: InProcessClient) -> tuple[threading.Thread, list[RequestOutput]]:
    found: list[RequestOutput] = []
    thread = threading.Thread(target=lambda: found.extend(client.outputs()), daemon=True)
    thread.start()
    return thread, found


def test_an_abort_with_no_step_to_come_ends_the_wait_of_a_background_engine() -> None:
    client = background(max_wait_ms=3_600_000.0)
    client.submit(make_request(0, [1, 2, 3]))
    assert list(client.outputs(timeout_s=0.05)) == []  # held back for a batch
    waiting, found = pull_in_a_thread(client)
    client.abort(0)
    waiting.join(10)
    assert not waiting.is_alive()
    assert [o.finish for o in found] == [FinishReason.ABORT]
    client.close()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_close_ends_what_is_open_with_an_error(in_background: bool) -> None:
    client = background(max_wait_ms=3_600_000.0) if in_background else InProcessClient(scripted_engine().core)
    for request in requests(2):
        client.submit(request)
    client.close()
    client.close()
    found = list(client.outputs())
    assert [(o.request_id, o.finish) for o in found] == [(0, FinishReason.ERROR), (1, FinishReason.ERROR)]
    assert all("closed" in (o.error or "") for o in found)
    assert list(client.outputs()) == []


def test_a_close_wakes_who_waits_for_outputs() -> None:
    client = background(max_wait_ms=3_600_000.0)
    client.submit(make_request(0, [1, 2, 3]))
    waiting, found = pull_in_a_thread(client)
    client.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert [o.finish for o in found] == [FinishReason.ERROR]


def test_a_wait_does_not_end_between_a_step_and_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has nothing left to do, and the last outputs are on their way to the client."""
    client = background(max_wait_ms=3_600_000.0)
    step, between, go_on = client.core.step, threading.Event(), threading.Event()

    def stepping() -> list[RequestOutput]:
        outputs = step()
        if any(o.finish is not None for o in outputs):
            between.set()
            assert go_on.wait(10)
        return outputs

    monkeypatch.setattr(client.core, "step", stepping)
    client.submit(make_request(0, [1, 2, 3]))
    client.abort(0)
    assert between.wait(10)
    waiting, found = pull_in_a_thread(client)
    waiting.join(0.1)
    go_on.set()
    waiting.join(10)
    assert [o.finish for o in found] == [FinishReason.ABORT]
    client.close()


class _Contested(deque[RequestOutput]):
    """Another thread takes the last one between the question whether it is there and the taking."""

    def popleft(self) -> RequestOutput:
        if len(self) == 1:
            self.clear()
        return super().popleft()


def test_two_threads_may_pull_the_same_outputs() -> None:
    client = InProcessClient(scripted_engine().core)
    for request in requests(3):
        client.submit(request)
    assert client.drain(1.0)
    client._ready = _Contested(client._ready)
    count = len(client._ready)
    assert len(list(client.outputs())) == count - 1
    client.close()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_watchdog_runs_until_the_client_is_closed(in_background: bool) -> None:
    core = EngineCore(scripted_engine().scheduler, scripted_engine().executor, WallClock())
    client = InProcessClient(core, background=in_background, stall_limit_s=0.02)
    core.busy_since = core.clock.now() - 60.0  # a step that does not end
    end = time.monotonic() + 10
    while not client.stats().stalled:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert "a step has been running" in (core.trouble or "")
    core.busy_since = None
    client.close()
    assert not client._watchdog._thread.is_alive()
