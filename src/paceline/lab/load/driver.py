"""Sends requests when they are due and hands on a record of each as it ends. One event loop, no waiting for answers.

Open loop: each request has its absolute time; a slow answer shifts nothing. Where `max_concurrency` holds one back, its
planned time stays, so the wait is in its latency. Closed loop: `loop_slots` at once, the next begins when one ends, and
planned = sent. Sessions: the next turn is planned at the end of the one before plus its think time.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from paceline.contracts.artefact import NEVER, RequestRecord
from paceline.contracts.slo import Outcome
from paceline.lab.load.alarm import Alarm
from paceline.lab.load.connection import Attempt
from paceline.lab.load.job import Job
from paceline.lab.load.options import LoadOptions
from paceline.lab.load.pool import Pool
from paceline.lab.load.result import Finished, finished

GOES_ON = frozenset({Outcome.OK, Outcome.TRUNCATED, Outcome.CLIENT_CANCEL})  # a session does after such a turn
Ask = Callable[[Job, list[dict[str, Any]], Callable[[Job], None]], None]
"""Renders a later turn: called with it, the conversation so far, and whom to give the job to, now or later."""


class Driver:
    """`add` jobs, then `run`. `on_finish` gets every attempt once, in the order they end."""

    def __init__(
        self,
        pool: Pool,
        options: LoadOptions,
        on_finish: Callable[[Finished], None],
        *,
        span_ns: int,  # no request is planned to begin after it; <= 0: no limit
        ask: Ask | None = None,
        cap: int | None = None,  # of requests at once
        worker: int = 0,
    ) -> None:
        self.num_in_flight = 0
        self.num_sent = 0
        self.stopped = False
        self._pool = pool
        self._options = options
        self._on_finish = on_finish
        self._ask = ask
        self._drain_s = 60.0 if options.drain_s is None else options.drain_s
        self._cap = cap
        self._worker = worker
        self._span_ns = span_ns if span_ns > 0 else 1 << 62
        self._t0 = 0
        self._clock: Callable[[], int] = time.monotonic_ns  # from the start, once there is one
        self._loop = asyncio.get_running_loop()
        self._alarm: Alarm | None = None
        self._due: list[tuple[int, int, Job]] = []  # heap of (planned, id, job)
        self._loops: dict[str, deque[Job]] = {}  # jobs of closed loops, by stream
        self._idle: dict[str, int] = {}  # their free slots
        self._begun = False
        self._later: dict[int, deque[Job]] = {}  # turns after the first, by session
        self._waiting: deque[tuple[Job, int]] = deque()  # for max_concurrency, with their planned times
        self._open: set[Attempt] = set()
        self._num_rendering = 0
        self._more_to_come = False
        self._over = asyncio.Event()

    # --- before and during

    def add(self, jobs: Iterable[Job], *, more: bool = False) -> None:
        """`more`: others will follow, so running out of them is not the end."""
        self._more_to_come = more
        for job in jobs:
            record = job.record
            if record.session is not None and record.turn > 0:
                self._later.setdefault(record.session, deque()).append(job)
            elif job.at_ns == NEVER:
                self._loops.setdefault(record.stream, deque()).append(job)
            else:
                heapq.heappush(self._due, (job.at_ns, record.id, job))
        if self._alarm is not None:
            self._fire()
            self._fill_loops()
            self._check_over()

    async def run(self, t0_ns: int) -> None:
        """Until all is done, the drain limit has passed, or `stop` was called. `t0_ns`: start, monotonic."""
        self._t0 = t0_ns
        monotonic_ns = time.monotonic_ns
        self._clock = self._pool.clock = lambda: monotonic_ns() - t0_ns
        self._alarm = Alarm(self._loop, self._fire)
        drain: asyncio.TimerHandle | None = None
        if self._span_ns < 1 << 62:
            wait_s = (t0_ns + self._span_ns - time.monotonic_ns()) / 1e9 + self._drain_s
            drain = self._loop.call_later(max(0.0, wait_s), self._drained)
        try:
            begin_s = (t0_ns - time.monotonic_ns()) / 1e9
            self._loop.call_later(max(0.0, begin_s), self._begin_loops)
            self._fire()
            await self._over.wait()
        finally:
            if drain is not None:
                drain.cancel()
            self._alarm.close()

    def stop(self) -> None:
        """Cut everything that is open; what was not planned yet leaves no record."""
        self.stopped = True
        self._cut(Outcome.CLIENT_CANCEL, "stopped: the load was interrupted")

    # --- what is due

    def _begin_loops(self) -> None:
        # a timer may ring early by a millisecond, and what is planned before 0 is not measured
        early_ns = -self._clock()
        if early_ns > 0:
            self._loop.call_later(early_ns / 1e9, self._begin_loops)
            return
        self._begun = True
        self._fill_loops()
        self._check_over()

    def _fill_loops(self) -> None:
        """Each free slot takes the next job of its stream, as far as there is one yet."""
        if not self._begun:
            return
        for stream, jobs in self._loops.items():
            if stream not in self._idle and jobs:
                self._idle[stream] = jobs[0].loop_slots or 1
            while jobs and self._idle[stream] and self._clock() < self._span_ns and not self._over.is_set():
                self._idle[stream] -= 1
                self._begin(jobs.popleft(), NEVER)

    def _fire(self) -> None:
        due = self._due
        if self._over.is_set():
            return
        while due and due[0][0] <= self._clock():
            at, _, job = heapq.heappop(due)
            self._begin(job, at)
        if due and self._alarm is not None:
            self._alarm.set(self._t0 + due[0][0])

    def _begin(self, job: Job, planned: int) -> None:
        """`planned` NEVER: now, whenever that is."""
        if self._cap is not None and self.num_in_flight >= self._cap:
            self._waiting.append((job, planned))
            return
        now = self._clock()
        attempt = Attempt(
            job,
            now if planned == NEVER else planned,
            now,
            self._ended,
            keep=self._options.keeps_texts or bool(job.messages),
        )
        self.num_in_flight += 1
        self.num_sent += 1
        self._open.add(attempt)
        self._set_timer(attempt)
        self._pool.send(attempt)

    def _set_timer(self, attempt: Attempt) -> None:
        faults = attempt.job.faults
        limit_s = self._options.timeout_s if faults.timeout_s is None else faults.timeout_s
        drop_s = faults.disconnect_after_s
        if drop_s is not None and drop_s < limit_s:
            attempt.timer = self._loop.call_later(drop_s, self._disconnect, attempt)
        else:
            attempt.timer = self._loop.call_later(limit_s, self._time_out, attempt, limit_s)

    def _time_out(self, attempt: Attempt, limit_s: float) -> None:
        attempt.give_up(Outcome.TIMEOUT, f"client: after {limit_s:g} s", self._clock())

    def _disconnect(self, attempt: Attempt) -> None:
        attempt.give_up(Outcome.DISCONNECT, "client: dropped the connection", self._clock(), abort=True)

    # --- what has ended

    def _ended(self, attempt: Attempt) -> None:
        self._open.discard(attempt)
        self.num_in_flight -= 1
        done = finished(attempt, self._worker, with_text=self._options.keeps_texts)
        self._on_finish(done)
        if self._over.is_set():
            return
        job, record = attempt.job, done.record
        if record.session is not None and not job.last_turn:
            self._next_turn(record.session, attempt, record)
        elif job.loop_slots is not None:
            self._free_slot(record.stream)
        while self._waiting and (self._cap is None or self.num_in_flight < self._cap):
            self._begin(*self._waiting.popleft())
        self._check_over()

    def _free_slot(self, stream: str) -> None:
        self._idle[stream] += 1
        self._loop.call_soon(self._fill_and_check)  # not inside the parser's call

    def _fill_and_check(self) -> None:
        self._fill_loops()
        self._check_over()

    def _next_turn(self, session: int, attempt: Attempt, record: RequestRecord) -> None:
        jobs = self._later.get(session)
        if not jobs:
            return
        job = jobs.popleft()
        planned = record.t_close_ns + job.think_ns
        if planned > self._span_ns or record.outcome is Outcome.DISCONNECT:
            jobs.clear()  # the load is over by then, or the client has gone for good: these turns were never due
            if job.loop_slots is not None:
                self._free_slot(record.stream)
            return
        if record.outcome not in GOES_ON:
            self._give_up_session(job, jobs, planned, f"an earlier turn ended with {record.outcome}")
            return
        answer = {"role": "assistant", "content": attempt.answer.text}
        self._num_rendering += 1

        def ready(job: Job) -> None:
            self._num_rendering -= 1
            heapq.heappush(self._due, (planned, job.record.id, job))
            self._fire()

        assert self._ask is not None, "sessions need somebody who renders their later turns"
        self._ask(job, [*attempt.job.messages, answer], ready)

    def _give_up_session(self, job: Job, rest: deque[Job], planned: int, why: str) -> None:
        for lost in (job, *rest):
            self._unsent(lost, planned, f"session: {why}")
        rest.clear()
        if job.loop_slots is not None:
            self._free_slot(job.record.stream)

    # --- the end

    def _check_over(self) -> None:
        busy = self.num_in_flight or self._waiting or self._due or self._num_rendering or self._more_to_come
        if busy:
            return
        now = self._clock()
        if now >= self._span_ns or not any(self._loops.values()):
            self._over.set()

    def _drained(self) -> None:
        limit = f"drain: {self._drain_s:g} s after the end of the load"
        self._cut(Outcome.TIMEOUT, limit)

    def _cut(self, outcome: Outcome, reason: str) -> None:
        if self._over.is_set():
            return
        self._over.set()
        now = self._clock()
        for attempt in list(self._open):
            attempt.give_up(outcome, reason, now)
        for job, planned in self._waiting:
            self._unsent(job, planned, reason)
        for planned, _, job in self._due:
            if planned <= now:
                self._unsent(job, planned, reason)

    def _unsent(self, job: Job, planned: int, reason: str) -> None:
        record = job.record
        record.t_plan_ns, record.outcome, record.reason, record.worker = planned, Outcome.NOT_SENT, reason, self._worker
        self._on_finish(Finished(record=record))
