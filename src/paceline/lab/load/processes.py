"""A load by processes of their own, so that nothing else that this one does can disturb a time.

A feeder thread renders and writes jobs ahead, a reader thread per process takes what comes; this thread waits, shows
progress, renders later turns and stops the load on Ctrl-C. Nothing is left behind: no process, no file.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

import msgspec

from paceline.errors import LabError
from paceline.lab.load.frames import AskTurn, Failed, Kind, Setup, Start, frame, read_frame
from paceline.lab.load.gathered import Gathered
from paceline.lab.load.generator import WorkerProgress, WorkerStats
from paceline.lab.load.options import LoadOptions
from paceline.lab.load.prepare import Preparation, share_of
from paceline.lab.load.result import Finished

AHEAD_S, AHEAD_JOBS = 60.0, 20_000  # rendered before the start; the rest while the load runs
HELD_JOBS, HELD_BYTES = 100_000, 256 << 20  # of one process before the start, whatever is due when
READY_S = 120.0  # to start and read all that
LEAD_S = 0.05  # from the last "ready" to the start
END_S = 20.0  # a stopped process has so long to hand over its records

Message = tuple[int, Kind | None, bytes]  # worker, kind (None: its output has ended), body


class LoadProcess:
    """One child and its pipes."""

    def __init__(self, worker: int, messages: queue.SimpleQueue[Message], records: list[bytes]) -> None:
        self.worker = worker
        self.ended = False
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline.lab.load.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(messages, records), daemon=True)
        self._reader.start()

    def write(self, data: bytes) -> None:
        """Waits for the process where it has read enough ahead. A process that is gone takes nothing: its end shows."""
        assert self._process.stdin is not None
        with self._writing, suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        self._log.seek(0)
        return self._log.read()[-2000:].decode("utf-8", "replace").strip()

    def close(self, *, kill: bool = False) -> None:
        """Idempotent. Closing its input ends a process that waits for more."""
        if kill:
            self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_S)
        self._process.stdout.close()
        self._log.close()

    def _read(self, messages: queue.SimpleQueue[Message], records: list[bytes]) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError, OSError):  # closed
            while (found := read_frame(self._process.stdout)) is not None:
                if found[0] is Kind.RECORD:
                    records.append(found[1])
                else:
                    messages.put((self.worker, *found))
        messages.put((self.worker, None, b""))


class ProcessLoad:
    """One run. `run` once."""

    def __init__(
        self,
        preparation: Preparation,
        options: LoadOptions,
        num_processes: int,
        *,
        report: Callable[[int, WorkerProgress], None],
        started: Callable[[int], None],
        tick: Callable[[], None],
        stop: threading.Event | None,
    ) -> None:
        self._preparation = preparation
        self._options = options
        self._report = report
        self._started = started
        self._tick = tick
        self._stop = stop
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._records: list[bytes] = []
        self._gathered = Gathered()
        self._num_ready = 0
        self._ahead = threading.Event()  # enough is rendered
        self._go = threading.Event()  # the start was told
        self._over = threading.Event()
        self._feeder_error: BaseException | None = None
        self._workers = [LoadProcess(i, self._messages, self._records) for i in range(num_processes)]
        self._stopping_at: float | None = None

    def run(self) -> Gathered:
        """Raises LabError when a process could not begin, and whatever rendering raises."""
        feeder = threading.Thread(target=self._feed, daemon=True)
        clean = False
        try:
            feeder.start()
            self._begin()
            self._go.set()
            self._watch()
            clean = True
        finally:
            self._over.set()
            self._go.set()
            for worker in self._workers:
                worker.close(kill=not clean)
            feeder.join(END_S)
        if self._feeder_error is not None:
            raise self._feeder_error
        decode = msgspec.msgpack.Decoder(Finished).decode
        self._gathered.finished = [decode(data) for data in self._records]
        return self._gathered

    # --- feeding, in its thread

    def _feed(self) -> None:
        try:
            self._set_up()
            self._write_jobs()
        except BaseException as error:
            self._feeder_error = error
        finally:
            self._ahead.set()

    def _set_up(self) -> None:
        cap, count = self._options.max_concurrency, len(self._workers)
        for worker in self._workers:
            setup = Setup(
                target=self._preparation.target,
                options=self._options,
                worker=worker.worker,
                span_ns=self._preparation.span_ns,
                cap=None if cap is None else share_of(worker.worker, cap, count),
            )
            worker.write(frame(Kind.SETUP, setup))

    def _write_jobs(self) -> None:
        begun = False
        count, num_bytes = len(self._workers), 0
        for index, job in enumerate(self._preparation.jobs()):
            if self._over.is_set():
                return
            if not begun and job.record.turn == 0:  # a session's turns stay together
                enough = index >= AHEAD_JOBS and job.at_ns > AHEAD_S * 1e9
                if enough or index >= HELD_JOBS * count or num_bytes >= HELD_BYTES * count:
                    begun = True
                    self._hand_over()
            self._workers[index % count].write(frame(Kind.JOB, job))
            num_bytes += len(job.body)
        if not begun:
            self._hand_over()
        for worker in self._workers:
            worker.write(frame(Kind.END))

    def _hand_over(self) -> None:
        """Everything so far is written: let the load begin before more follows."""
        for worker in self._workers:
            worker.write(frame(Kind.READY))
        self._ahead.set()
        self._go.wait()

    # --- waiting, in the caller's thread

    def _begin(self) -> None:
        self._ahead.wait()
        limit = time.monotonic() + READY_S
        while self._num_ready < len(self._workers):
            if self._feeder_error is not None:
                raise self._feeder_error
            if time.monotonic() > limit:
                raise LabError("a load process did not get ready", seen=f"{self._num_ready} of {len(self._workers)}")
            self._take(timeout_s=0.5)
            self._check_alive()
        self._gathered.t0_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
        for worker in self._workers:
            worker.write(frame(Kind.START, Start(self._gathered.t0_ns)))
        self._started(self._gathered.t0_ns)

    def _check_alive(self) -> None:
        for worker in self._workers:
            if worker.ended:
                raise LabError("a load process ended before the load", seen=worker.last_words() or "no message")

    def _watch(self) -> None:
        while not all(worker.ended for worker in self._workers):
            try:
                self._take(timeout_s=0.2)
                self._tick()
                if self._stop is not None and self._stop.is_set():
                    self._stop_all()
                if self._feeder_error is not None:
                    self._stop_all()
                if self._stopping_at is not None and time.monotonic() > self._stopping_at + END_S:
                    raise LabError("a load process did not stop")
            except KeyboardInterrupt:
                if self._stopping_at is not None:
                    raise  # the second one
                self._stop_all()

    def _stop_all(self) -> None:
        if self._stopping_at is None:
            self._stopping_at = time.monotonic()
            self._gathered.stopped = True
            for worker in self._workers:
                if not worker.ended:
                    worker.stop()

    def _take(self, *, timeout_s: float) -> None:
        """One message, if there is one in time."""
        try:
            index, kind, body = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return
        worker = self._workers[index]
        if kind is None:
            if not worker.ended and self._num_ready == len(self._workers):
                words = worker.last_words() or "no message"
                self._gathered.problems.append(f"load process {index} was lost: {words[-300:]}")
            worker.ended = True
        elif kind is Kind.IS_READY:
            self._num_ready += 1
        elif kind is Kind.PROGRESS:
            self._report(index, msgspec.msgpack.decode(body, type=WorkerProgress))
        elif kind is Kind.ASK:
            self._render(worker, msgspec.msgpack.decode(body, type=AskTurn))
        elif kind is Kind.DONE:
            self._gathered.stats.append(msgspec.msgpack.decode(body, type=WorkerStats))
            worker.ended = True
        elif kind is Kind.FAILED:
            raise LabError("a load process failed", seen=msgspec.msgpack.decode(body, type=Failed).message)

    def _render(self, worker: LoadProcess, ask: AskTurn) -> None:
        worker.write(frame(Kind.TURN, self._preparation.turn_by_id(ask.id, ask.history)))
