"""Grammars of clients at the server: tried once whoever asks, in order, and never in the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from paceline.errors import EngineError, QueueFullError, RequestError
from paceline.server import grammars
from paceline.server.grammars import GrammarDesk


class Gate:
    """A checker that waits to be let go, and refuses what begins with "bad"."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.seen: list[bytes] = []

    def check(self, grammar: bytes) -> None:
        assert self.go.wait(20.0)
        self.seen.append(grammar)
        if grammar.startswith(b"bad"):
            raise RequestError("it is bad", param="grammar", seen=grammar.decode())

    def close(self) -> None:
        self.go.set()


def test_one_trial_for_all_who_ask_and_the_loop_goes_on() -> None:
    async def scene() -> None:
        gate = Gate()
        desk = GrammarDesk(gate)
        asked = [asyncio.create_task(desk.check(b"fine")) for _ in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)  # the loop is free
        assert not any(task.done() for task in asked)
        gate.go.set()
        await asyncio.gather(*asked)
        await desk.check(b"fine")
        assert gate.seen == [b"fine"]
        desk.close()

    asyncio.run(scene())


def test_a_refusal_is_remembered_and_is_a_new_error_for_each_caller() -> None:
    async def scene() -> None:
        gate = Gate()
        gate.go.set()
        desk = GrammarDesk(gate)
        errors = []
        for _ in range(3):
            with pytest.raises(RequestError, match="it is bad") as caught:
                await desk.check(b"bad one")
            errors.append(caught.value)
        assert gate.seen == [b"bad one"]
        assert len({id(error) for error in errors}) == 3
        desk.close()

    asyncio.run(scene())


def test_what_could_not_be_found_out_is_not_remembered() -> None:
    class Weak(Gate):
        def check(self, grammar: bytes) -> None:
            super().check(grammar)
            if len(self.seen) == 1:
                raise EngineError("the process does not start")

    async def scene() -> None:
        weak = Weak()
        weak.go.set()
        desk = GrammarDesk(weak)
        with pytest.raises(EngineError, match="does not start"):
            await desk.check(b"fine")
        await desk.check(b"fine")
        await desk.check(b"fine")
        assert weak.seen == [b"fine", b"fine"]
        desk.close()

    asyncio.run(scene())


def test_a_caller_who_leaves_does_not_end_the_trial_of_the_others() -> None:
    async def scene() -> None:
        gate = Gate()
        desk = GrammarDesk(gate)
        first, second = (asyncio.create_task(desk.check(b"fine")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        gate.go.set()
        await second
        desk.close()

    asyncio.run(scene())


def test_too_many_that_nobody_knows_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_WAITING", 2)

    async def scene() -> None:
        gate = Gate()
        desk = GrammarDesk(gate)
        waiting = [asyncio.create_task(desk.check(b"fine %d" % i)) for i in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await desk.check(b"fine 2")
        gate.go.set()
        await asyncio.gather(*waiting)
        await desk.check(b"fine 2")
        desk.close()

    asyncio.run(scene())


def test_verdicts_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_KNOWN", 2)

    async def scene() -> None:
        gate = Gate()
        gate.go.set()
        desk = GrammarDesk(gate)
        for name in (b"a", b"b", b"a", b"c", b"a", b"b"):
            await desk.check(name)
        assert gate.seen == [b"a", b"b", b"c", b"b"]
        desk.close()

    asyncio.run(scene())
