from __future__ import annotations

import threading

import pytest
from tests.fakes.builders import collect, make_request, scripted_engine

from paceline.contracts.request import FinishReason
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
