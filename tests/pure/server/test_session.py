"""The engine as coroutines see it: streams, aborts, losses and drains, over an engine that does what the test says."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from paceline.contracts.request import FinishReason, Request, RequestOutput, SamplingParams, TokenPrompt
from paceline.errors import EngineDeadError, EngineError, QueueFullError
from paceline.server.session import EngineSession, OutputStream


class Puppet:
    """An `EngineProcess` whose outputs the test gives. `hold` keeps submissions waiting."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {"max_model_len": 64, "phases": {"weights": 0.5}}
        self.pid = 1
        self.submitted: list[int] = []
        self.aborted: list[int] = []
        self.num_abort_calls = 0
        self.refuse: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()
        self._news: queue.SimpleQueue[list[RequestOutput] | EngineError] = queue.SimpleQueue()

    def give(self, *outputs: RequestOutput) -> None:
        self._news.put(list(outputs))

    def die(self) -> None:
        self._news.put(EngineDeadError("the engine process died", seen="signal 9"))

    def submit_all(self, requests: Sequence[Request]) -> None:
        assert self.hold.wait(10.0)
        if self.refuse is not None:
            raise self.refuse
        self.submitted += [request.request_id for request in requests]

    def abort_all(self, request_ids: Sequence[int]) -> None:
        self.num_abort_calls += 1
        self.aborted += request_ids

    def outputs(self, timeout_s: float | None = None) -> Iterator[RequestOutput]:
        news = self._news.get()
        if isinstance(news, EngineError):
            raise news
        yield from news

    def stats(self) -> Any:
        raise EngineDeadError("not asked for here")


def run(test: Callable[[EngineSession, Puppet], Awaitable[None]]) -> None:
    async def main() -> None:
        session, engine = EngineSession(), Puppet()
        session.attach(engine)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(test(session, engine), 20.0)
        finally:
            engine.hold.set()
            session.close()
            engine.die()  # ends its pump
            session.end_threads()

    asyncio.run(main())


def call_of(session: EngineSession, count: int = 1) -> list[Request]:
    prompt = TokenPrompt(ids=np.arange(3, dtype=np.int32))
    return [Request(request_id=session.next_id(), prompt=prompt, sampling=SamplingParams()) for _ in range(count)]


def output(stream: OutputStream, *tokens: int, finish: FinishReason | None = None) -> RequestOutput:
    return RequestOutput(request_id=stream.request_id, token_ids=list(tokens), finish=finish)


async def tokens_of(stream: OutputStream) -> list[int]:
    tokens: list[int] = []
    while True:
        for news in await stream.next():
            tokens += news.token_ids
            if news.finish is not None:
                return tokens


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_each_stream_gets_its_own_outputs_in_order() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        one, two = await session.generate(call_of(session, 2))
        assert engine.submitted == [one.request_id, two.request_id]
        engine.give(output(one, 1), output(two, 7))
        engine.give(output(one, 2, 3), output(two, 8, finish=FinishReason.STOP))
        engine.give(output(one, 4, finish=FinishReason.LENGTH))
        assert await tokens_of(one) == [1, 2, 3, 4]
        assert await tokens_of(two) == [7, 8]
        assert session.num_open == 0

    run(test)


def test_outputs_of_one_step_are_taken_together() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        (stream,) = await session.generate(call_of(session))
        engine.give(output(stream, 1), output(stream, 2), output(stream, 3, finish=FinishReason.STOP))
        assert [o.token_ids for o in await stream.next()] == [[1], [2], [3]]
        assert stream.ended

    run(test)


def test_a_refused_call_leaves_nothing_open() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        engine.refuse = QueueFullError("the queue is full")
        with pytest.raises(QueueFullError):
            await session.generate(call_of(session, 3))
        assert session.num_open == 0
        engine.refuse = None
        assert len(await session.generate(call_of(session))) == 1

    run(test)


def test_closing_aborts_once_and_what_was_used_is_still_heard() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        streams = await session.generate(call_of(session, 2))
        ends: list[RequestOutput] = []
        for stream in streams:
            stream.on_finish = ends.append
            stream.close()
            stream.close()
        await until(lambda: len(engine.aborted) == 2)
        engine.give(*(output(stream, finish=FinishReason.ABORT) for stream in streams))
        await until(lambda: session.num_open == 0)
        assert sorted(o.request_id for o in ends) == sorted(engine.aborted)
        assert len(engine.aborted) == 2

    run(test)


def test_closing_after_the_end_aborts_nothing() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        (stream,) = await session.generate(call_of(session))
        engine.give(output(stream, 1, finish=FinishReason.STOP))
        await until(lambda: stream.ended)
        stream.close()
        await session.generate(call_of(session))  # in the same thread as an abort would be
        assert engine.num_abort_calls == 0

    run(test)


def test_many_who_leave_at_once_cost_few_calls() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        streams = await session.generate(call_of(session, 200))
        engine.hold.clear()
        waiting = asyncio.create_task(session.generate(call_of(session)))  # keeps the calls thread
        await asyncio.sleep(0)
        for stream in streams:
            stream.close()
        engine.hold.set()
        await waiting
        await until(lambda: len(engine.aborted) == 200)
        assert engine.num_abort_calls <= 2

    run(test)


def test_a_caller_that_leaves_while_submitting_is_aborted() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        engine.hold.clear()
        asking = asyncio.create_task(session.generate(call_of(session, 2)))
        await until(lambda: session.num_open == 2)
        await asyncio.sleep(0.01)  # the calls thread has it
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        engine.hold.set()
        await until(lambda: len(engine.aborted) == 2)
        assert engine.aborted == engine.submitted

    run(test)


def test_a_caller_that_leaves_a_refused_submission_leaves_nothing() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        engine.hold.clear()
        engine.refuse = QueueFullError("the queue is full")
        asking = asyncio.create_task(session.generate(call_of(session)))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        engine.hold.set()
        await until(lambda: session.num_open == 0)
        assert engine.aborted == []

    run(test)


def test_the_loss_of_the_engine_reaches_every_stream() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        streams = await session.generate(call_of(session, 3))
        ends: list[RequestOutput] = []
        streams[2].on_finish = ends.append
        streams[2].close()
        engine.give(output(streams[0], 5))
        engine.die()
        for stream, tokens in zip(streams[:2], ([5], []), strict=True):
            news = await stream.next()
            while news[-1].finish is None:
                news += await stream.next()
            assert [i for o in news for i in o.token_ids] == tokens
            assert news[-1].finish is FinishReason.ERROR
            assert news[-1].error == "the engine process died"  # its last words are the operator's
        assert [o.finish for o in ends] == [FinishReason.ERROR]
        assert not session.ready
        assert "died" in session.why_not_ready
        with pytest.raises(EngineDeadError):
            await session.generate(call_of(session))

    run(test)


def test_last_words_of_an_engine_are_not_told_to_whoever_submits() -> None:
    """They are what its process wrote to stderr, other tenants' requests among it."""

    async def test(session: EngineSession, engine: Puppet) -> None:
        engine.refuse = EngineDeadError("the engine process died", seen="exit status 1; Traceback: secret")
        with pytest.raises(EngineDeadError) as caught:
            await session.generate(call_of(session))
        assert "secret" not in str(caught.value)
        assert session.num_open == 0

    run(test)


def test_another_engine_takes_over_with_new_ids_and_old_outputs_are_nobodys() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        (old,) = await session.generate(call_of(session))
        engine.die()
        await tokens_of(old)
        second = Puppet()
        session.attach(second)  # type: ignore[arg-type]
        assert session.ready
        (new,) = await session.generate(call_of(session))
        assert new.request_id > old.request_id
        second.give(output(old, 9, finish=FinishReason.STOP), output(new, 1, finish=FinishReason.STOP))
        assert await tokens_of(new) == [1]
        second.die()

    run(test)


def test_a_drain_waits_for_what_runs_and_takes_nothing_new() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        (stream,) = await session.generate(call_of(session))
        drained = asyncio.create_task(session.drain(10.0))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="stopping"):
            await session.generate(call_of(session))
        engine.give(output(stream, 1, finish=FinishReason.STOP))
        assert await drained
        assert await tokens_of(stream) == [1]

    run(test)


def test_a_drain_ends_what_does_not_end_in_time() -> None:
    async def test(session: EngineSession, engine: Puppet) -> None:
        (stream,) = await session.generate(call_of(session))
        assert not await session.drain(0.01)
        (last,) = await stream.next()
        assert last.finish is FinishReason.ERROR
        assert "stopping" in (last.error or "")
        await until(lambda: engine.aborted == [stream.request_id])

    run(test)


def test_text_is_made_in_a_thread_of_its_own() -> None:
    async def test(session: EngineSession, _: Puppet) -> None:
        names = await asyncio.gather(*(session.text(lambda: threading.current_thread().name) for _ in range(3)))
        assert len(set(names)) == 1
        assert names[0].startswith("paceline-text")

    run(test)
