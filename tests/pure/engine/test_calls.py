"""Calls of several requests, and calls from outside while the engine's own thread hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fakes.builders import VOCAB, Built, collect, make_request, reference, scripted_engine
from tests.fakes.toy_model import ToyModel

from paceline.contracts.request import FinishReason, Request, expand_choices
from paceline.contracts.step import StepPlan
from paceline.engine.client import InProcessClient
from paceline.engine.journal import Aborted, StepJournal, Submitted, read_events
from paceline.engine.loop import EngineCore
from paceline.errors import EngineError, QueueFullError, RequestError

PROMPT = [1, 2, 3, 4, 5, 6]


def choices(first_id: int, count: int, **fields: Any) -> list[Request]:
    sampling = {"n": count, "ignore_eos": True}
    call = make_request(first_id, PROMPT, 6, temperature=1.0, seed=None, sampling=sampling, **fields)
    return expand_choices(call, range(first_id + 1, first_id + count))


def test_choices_submitted_together_share_one_drawn_seed_and_their_prompt() -> None:
    built = scripted_engine()
    seeds = iter([11, 22])
    core = EngineCore(built.scheduler, built.executor, built.clock, draw_seed=lambda: next(seeds))
    core.submit_all(choices(0, 3))
    outputs = [o for _ in range(20) for o in core.step()]
    assert next(seeds) == 22
    for request_id, finished in collect(outputs).items():
        alone = make_request(0, PROMPT, 6, temperature=1.0, seed=11, choice=request_id, sampling={"ignore_eos": True})
        assert finished.token_ids == reference(alone, 6, ToyModel(VOCAB))
    assert built.kv.stats().saved_tokens > 0


def refused(why: str) -> tuple[Built, list[Request], str]:
    """An engine with one request in it, and three of which the last is refused."""
    built = scripted_engine(max_waiting_requests=3, max_waiting_tokens=27, journal=StepJournal())
    built.core.submit(make_request(50, [9, 9], 3))
    first, second, _ = choices(0, 3)
    last, words = {
        "wrong": (make_request(2, [VOCAB]), "vocabulary"),
        "id of the same call": (make_request(1, [1]), "in use"),
        "id of an open request": (make_request(50, [1]), "in use"),
        "foreign leader": (make_request(2, [7, 7], choice=1, leader=0), "leader"),
        "queue requests": (make_request(2, [1]), "queue is full"),
        "queue tokens": (make_request(2, list(range(20))), "queue is full"),
    }[why]
    calls = [first, second, last]
    if why == "queue tokens":
        calls.remove(second)
    return built, calls, words


@pytest.mark.parametrize(
    "why",
    ["wrong", "id of the same call", "id of an open request", "foreign leader", "queue requests", "queue tokens"],
)
def test_if_one_of_a_call_is_refused_none_stays(why: str) -> None:
    built, call, words = refused(why)
    before, number = built.core.stats(), built.scheduler.decisions.num_recorded
    kind = QueueFullError if why.startswith("queue") else RequestError
    with pytest.raises(kind, match=words):
        built.core.submit_all(call)
    assert built.core.stats() == before
    assert built.scheduler.decisions.num_recorded == number
    assert sorted(built.finish()) == [50]
    assert built.journal is not None
    assert [e.request.request_id for e in read_events(built.journal.to_bytes()) if isinstance(e, Submitted)] == [50]
    assert sorted(built.run(make_request(0, [1, 2]), make_request(1, [1, 2]))) == [0, 1]  # the ids are free


def test_what_fits_the_queue_one_by_one_fits_it_together() -> None:
    built = scripted_engine(max_waiting_requests=3, max_waiting_tokens=18)
    built.core.submit_all(choices(0, 3))
    with pytest.raises(QueueFullError):
        built.core.submit_all([make_request(5, [1])])
    assert sorted(built.finish()) == [0, 1, 2]


def test_an_empty_call_is_nothing() -> None:
    built = scripted_engine()
    built.core.submit_all([])
    built.core.abort_all([])
    assert not built.core.has_work


def test_several_are_ended_at_once_and_recorded_one_by_one() -> None:
    built = scripted_engine(journal=StepJournal())
    client = InProcessClient(built.core)
    client.submit_all(choices(0, 4))
    client.abort_all([3, 1, 77])
    assert client.drain(10.0)
    found = collect(list(client.outputs()))
    assert [i for i, f in sorted(found.items()) if f.reason == FinishReason.ABORT] == [1, 3]
    assert built.journal is not None
    assert [e.request_id for e in read_events(built.journal.to_bytes()) if isinstance(e, Aborted)] == [3, 1]
    client.close()


@contextmanager
def hanging_plan(limit_s: float) -> Iterator[EngineCore]:
    """An engine whose second plan is being made until the body ends, in a thread of its own."""
    built = scripted_engine()
    core = EngineCore(built.scheduler, built.executor, built.clock, lock_limit_s=limit_s)
    core.submit(make_request(0, PROMPT, 20, sampling={"ignore_eos": True}))
    core.step()
    core.stats()
    plan, entered, go_on = built.scheduler.plan, threading.Event(), threading.Event()

    def hang(now: float) -> StepPlan:
        entered.set()
        assert go_on.wait(30)
        return plan(now)

    built.scheduler.plan = hang  # type: ignore[method-assign]
    stepping = threading.Thread(target=core.step)
    stepping.start()
    assert entered.wait(10)
    try:
        yield core
    finally:
        go_on.set()
        stepping.join()


def test_while_a_plan_hangs_a_look_says_so_and_other_calls_are_refused() -> None:
    with hanging_plan(0.02) as core:
        stats = core.stats()
        assert stats.stalled
        assert stats.num_running == 1
        assert "more than 0.02 s" in stats.trouble
        assert "request 0 admit cold" in stats.trouble
        calls = (
            lambda: core.submit(make_request(1, [1])),
            lambda: core.abort(0),
            lambda: core.decisions(0),
            core.kv_events,
            core.reset_prefix_cache,
        )
        for call in calls:
            with pytest.raises(EngineError, match="hangs between two steps"):
                call()
    stats = core.stats()
    assert not stats.stalled
    assert stats.trouble == ""
    core.submit(make_request(1, [1, 2]))
    outputs = [o for _ in range(30) for o in core.step()]
    assert {o.request_id for o in outputs if o.finish is FinishReason.LENGTH} == {0, 1}


def test_only_the_first_to_meet_a_hang_waits_for_long() -> None:
    with hanging_plan(0.2) as core:
        assert core.stats().stalled
        core._lock_limit_s = 1e6  # nobody may wait for that
        for _ in range(3):
            assert core.stats().stalled
            with pytest.raises(EngineError):
                core.abort(0)
        core._lock_limit_s = 20.0
    assert not core.stats().stalled


def test_an_engine_that_stopped_tells_why_in_its_stats() -> None:
    built = scripted_engine(executor={"crash_at": 1})
    built.core.submit(make_request(0, PROMPT, 20, sampling={"ignore_eos": True}))
    for _ in range(3):
        built.core.step()
    stats = built.core.stats()
    assert stats.stalled
    assert "fell off the bus" in stats.trouble
