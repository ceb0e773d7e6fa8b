"""Starting, losing and giving up engines, with engines that do what the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.contracts.request import RequestOutput
from paceline.errors import EngineDeadError, EngineError, ModelError
from paceline.server.session import EngineSession
from paceline.server.supervisor import EngineThread, RestartPolicy, Supervisor

QUICK = RestartPolicy(first_s=0.01, longest_s=0.02)


class Engine:
    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.pid = 1
        self.closed = False
        self.stuck = ""
        self._dead = threading.Event()

    def die(self) -> None:
        self._dead.set()

    def outputs(self, timeout_s: float | None = None) -> Iterator[RequestOutput]:
        if self._dead.wait(timeout_s):
            raise EngineDeadError("the engine process died")
        return iter(())

    def stats(self) -> Any:
        return SimpleNamespace(stalled=bool(self.stuck), trouble=self.stuck)

    def close(self) -> None:
        self.closed = True
        self._dead.set()


class Nursery:
    """Spawns engines; `fail` lists what the next starts raise (None: nothing)."""

    def __init__(self, *fail: Exception | None) -> None:
        self.engines: list[Engine] = []
        self.fail = list(fail)
        self.slow = False

    def spawn(self, on_phase: Callable[[str], None], give_up: Callable[[], bool]) -> Any:
        on_phase("weights")
        while self.slow:
            if give_up():
                raise EngineError("the start of the engine was given up")
        error = self.fail.pop(0) if self.fail else None
        if error is not None:
            raise error
        self.engines.append(Engine())
        return self.engines[-1]


@dataclass(frozen=True)
class World:
    session: EngineSession
    supervisor: Supervisor
    task: asyncio.Task[None]  # the supervisor's run


def run(
    nursery: Nursery,
    policy: RestartPolicy,
    test: Callable[[World], Awaitable[None]],
    stall_limit_s: float = 60.0,
) -> None:
    async def main() -> None:
        session = EngineSession()
        supervisor = Supervisor(session, nursery.spawn, EngineThread(), policy, stall_limit_s=stall_limit_s)
        task = asyncio.create_task(supervisor.run())
        try:
            await asyncio.wait_for(test(World(session, supervisor, task)), 20.0)
        finally:
            await supervisor.close()
            session.end_threads()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert all(engine.closed for engine in nursery.engines)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_pauses_double_up_to_a_bound() -> None:
    policy = RestartPolicy(first_s=0.5, longest_s=3.0)
    assert [policy.pause_s(k) for k in (1, 2, 3, 4, 50)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_dead_engine_is_followed_by_another() -> None:
    nursery = Nursery()

    async def test(world: World) -> None:
        await until(lambda: world.session.ready)
        assert world.session.restarts == 0
        nursery.engines[0].die()
        await until(lambda: world.session.ready and world.session.restarts == 1)
        assert len(nursery.engines) == 2
        assert nursery.engines[0].closed

    run(nursery, QUICK, test)


def test_the_phase_of_the_start_is_told() -> None:
    nursery = Nursery()
    nursery.slow = True

    async def test(world: World) -> None:
        await until(lambda: world.session.why_not_ready == "loading: weights")
        nursery.slow = False
        await until(lambda: world.session.ready)

    run(nursery, QUICK, test)


def test_what_the_first_start_raises_is_raised() -> None:
    nursery = Nursery(ModelError("the model is torn"))

    async def test(world: World) -> None:
        with pytest.raises(ModelError, match="torn"):
            await world.task

    run(nursery, QUICK, test)


def test_a_start_that_fails_later_counts_as_a_death() -> None:
    nursery = Nursery(None, ModelError("gone for a moment"))

    async def test(world: World) -> None:
        await until(lambda: world.session.ready)
        nursery.engines[0].die()
        await until(lambda: world.session.ready and world.session.restarts == 2)

    run(nursery, QUICK, test)


def test_without_restart_a_death_is_the_end() -> None:
    nursery = Nursery()

    async def test(world: World) -> None:
        await until(lambda: world.session.ready)
        nursery.engines[0].die()
        with pytest.raises(EngineDeadError, match="not started again"):
            await world.task

    run(nursery, RestartPolicy(restart=False), test)


def test_too_many_deaths_in_a_row_are_the_end() -> None:
    nursery = Nursery()

    async def test(world: World) -> None:
        for count in (1, 2, 3):
            await until(lambda count=count: world.session.ready and len(nursery.engines) == count)
            nursery.engines[-1].die()
        with pytest.raises(EngineDeadError, match="3 deaths in a row"):
            await world.task

    run(nursery, RestartPolicy(max_restarts=2, first_s=0.01), test)


def test_deaths_after_good_service_are_not_added_up() -> None:
    nursery = Nursery()

    async def test(world: World) -> None:
        for count in (1, 2, 3, 4):
            await until(lambda count=count: world.session.ready and len(nursery.engines) == count)
            await asyncio.sleep(0.01)
            nursery.engines[-1].die()
        await until(lambda: world.session.ready and world.session.restarts == 4)

    run(nursery, RestartPolicy(max_restarts=1, first_s=0.001, settled_s=0.005), test)


def test_a_stuck_step_is_red_until_it_ends() -> None:
    nursery = Nursery()

    async def test(world: World) -> None:
        await until(lambda: world.session.ready)
        nursery.engines[0].stuck = "a step has been running for 9 s\ndecisions"
        await until(lambda: not world.session.ready)
        assert world.session.why_not_ready.startswith("a step has been running")
        assert world.session.alive
        nursery.engines[0].stuck = ""
        await until(lambda: world.session.ready)
        assert world.session.restarts == 0

    run(nursery, QUICK, test, stall_limit_s=0.05)


def test_closing_while_it_starts_gives_the_start_up() -> None:
    nursery = Nursery()
    nursery.slow = True

    async def test(world: World) -> None:
        await until(lambda: world.session.why_not_ready == "loading: weights")
        await world.supervisor.close()
        await world.task
        assert nursery.engines == []

    run(nursery, QUICK, test)
