"""One load process's work, in whatever loop it is given: the driver, its health, its progress, and the collector kept
quiet while it runs.

Garbage collection stops the loop for milliseconds once there are many objects, so everything from before is frozen and
the collector is off during the load. The client makes no cycles per request; should something else make them, a
collection of the young ones runs after `MAX_YOUNG` allocations, so memory has a bound.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from paceline.contracts.slo import Outcome, percentile
from paceline.lab.load.driver import Driver
from paceline.lab.load.pool import Pool
from paceline.lab.load.result import Finished, first_token_s, per_token_s

TICK_S = 0.05
MAX_YOUNG = 1_000_000
MAX_SAMPLES = 200  # per report, of each kind


class WorkerStats(msgspec.Struct, kw_only=True):
    """Of one load process over its load."""

    loop_lag_p99_ms: float = 0.0
    cpu_s: float = 0.0  # of the loop's thread
    wall_s: float = 0.0
    num_chunks: int = 0
    num_sent: int = 0
    connections_peak: int = 0


class WorkerProgress(msgspec.Struct, kw_only=True):
    """Since the start; the samples since the report before."""

    num_sent: int = 0
    num_in_flight: int = 0
    num_done: int = 0
    num_failed: int = 0
    ttft_s: list[float] = []
    tpot_s: list[float] = []


class Generator:
    """Wires a driver to its measures. `on_finish` gets every record, `report` progress every `report_s`."""

    def __init__(
        self,
        pool: Pool,
        make_driver: Callable[[Callable[[Finished], None]], Driver],
        on_finish: Callable[[Finished], None],
        report: Callable[[WorkerProgress], None],
        *,
        report_s: float = 0.5,
    ) -> None:
        self.driver = make_driver(self._finished)
        self._pool = pool
        self._on_finish = on_finish
        self._report = report
        self._report_s = report_s
        self._progress = WorkerProgress(ttft_s=[], tpot_s=[])
        self._num_chunks = 0
        self._lags_s: list[float] = []

    async def run(self, t0_ns: int) -> WorkerStats:
        """With the collector hushed, and before `t0_ns`."""
        ticks = asyncio.ensure_future(self._tick())
        cpu_s, began_s = time.thread_time(), time.monotonic()
        try:
            await self.driver.run(t0_ns)
        finally:
            ticks.cancel()
            self._pool.close()
            await asyncio.sleep(0)  # connections say goodbye
        self._send_report()
        return WorkerStats(
            loop_lag_p99_ms=percentile(self._lags_s, 0.99) * 1e3 if self._lags_s else 0.0,
            cpu_s=time.thread_time() - cpu_s,
            wall_s=time.monotonic() - began_s,
            num_chunks=self._num_chunks,
            num_sent=self.driver.num_sent,
            connections_peak=self._pool.peak,
        )

    def _finished(self, done: Finished) -> None:
        record, progress = done.record, self._progress
        self._num_chunks += len(record.chunks)
        progress.num_done += 1
        if record.outcome is not Outcome.OK:
            progress.num_failed += 1
        elif len(progress.ttft_s) < MAX_SAMPLES:
            ttft_s, tpot_s = first_token_s(record), per_token_s(record)
            if ttft_s is not None:
                progress.ttft_s.append(ttft_s)
            if tpot_s is not None:
                progress.tpot_s.append(tpot_s)
        self._on_finish(done)

    async def _tick(self) -> None:
        """How late the loop is for its own ticks."""
        next_report = time.monotonic() + self._report_s  # uvloop's own clock counts milliseconds
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._lags_s.append(max(0.0, now - due))
            if gc.get_count()[0] > MAX_YOUNG:
                gc.collect(0)
                gc.freeze()
            if now >= next_report:
                self._send_report()
                next_report = now + self._report_s

    def _send_report(self) -> None:
        progress = self._progress
        progress.num_sent, progress.num_in_flight = self.driver.num_sent, self.driver.num_in_flight
        self._report(progress)
        progress.ttft_s, progress.tpot_s = [], []


def hush_collector() -> None:
    """Collect once more, then never unasked. Takes its time: before the start is set."""
    gc.collect()
    gc.freeze()
    gc.disable()


@contextmanager
def quiet_collector() -> Iterator[None]:
    """The collector hushed in the block."""
    was_on = gc.isenabled()
    hush_collector()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
