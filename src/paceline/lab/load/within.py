"""A load within this process: for tests and small rates, where starting processes would take longer than the load."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvloop

from paceline.lab.load.driver import Driver
from paceline.lab.load.gathered import Gathered
from paceline.lab.load.generator import Generator, WorkerProgress, quiet_collector
from paceline.lab.load.job import Job
from paceline.lab.load.options import LoadOptions
from paceline.lab.load.pool import Pool
from paceline.lab.load.prepare import Preparation

LEAD_S = 0.02  # from now to the start
POLL_S = 0.1


def run_within(
    preparation: Preparation,
    options: LoadOptions,
    *,
    report: Callable[[int, WorkerProgress], None],
    started: Callable[[int], None],
    stop: threading.Event | None,
) -> Gathered:
    """Ctrl-C stops the load; what it has is given back."""
    jobs = list(preparation.jobs())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, quiet_collector():
        return runner.run(_run(preparation, jobs, options, report, started, stop))


async def _run(
    preparation: Preparation,
    jobs: list[Job],
    options: LoadOptions,
    report: Callable[[int, WorkerProgress], None],
    started: Callable[[int], None],
    stop: threading.Event | None,
) -> Gathered:
    loop = asyncio.get_running_loop()
    pool = Pool(preparation.target, loop)
    with suppress(OSError):  # a server that is not there fails each request by itself
        await pool.resolve()
    gathered = Gathered()

    def ask(job: Job, history: list[dict[str, Any]], ready: Callable[[Job], None]) -> None:
        ready(preparation.later_turn(job, history))

    generator = Generator(
        pool,
        lambda on_finish: Driver(
            pool, options, on_finish, span_ns=preparation.span_ns, ask=ask, cap=options.max_concurrency
        ),
        gathered.finished.append,
        lambda progress: report(0, progress),
    )
    generator.driver.add(jobs)
    gathered.t0_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
    started(gathered.t0_ns)
    work = asyncio.ensure_future(generator.run(gathered.t0_ns))
    watch = None if stop is None else asyncio.ensure_future(_watch(stop, generator.driver))
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if generator.driver.stopped:
                raise
            generator.driver.stop()  # the first Ctrl-C
    if watch is not None:
        watch.cancel()
    gathered.stats.append(work.result())
    gathered.stopped = generator.driver.stopped
    return gathered


async def _watch(stop: threading.Event, driver: Driver) -> None:
    while not stop.is_set():
        await asyncio.sleep(POLL_S)
    driver.stop()
