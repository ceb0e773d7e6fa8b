"""A load process: `python -m paceline.lab.load.worker`, with frames on standard input and output.

It reads its jobs ahead of time, says that it is ready, begins at the moment it is told, and sends records as requests
end. SIGTERM, or the end of its input (the parent is gone), interrupts the load; what it has is sent all the same.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import uvloop

from paceline.errors import PacelineError
from paceline.lab.load.driver import Driver
from paceline.lab.load.frames import AskTurn, Failed, FrameSplitter, Kind, Setup, Start, frame
from paceline.lab.load.generator import Generator, WorkerProgress, hush_collector
from paceline.lab.load.job import Job
from paceline.lab.load.pool import Pool
from paceline.lab.load.result import Finished

FLUSH_S = 0.05
MAX_AHEAD_JOBS, MAX_AHEAD_BYTES = 200_000, 512 << 20  # read ahead; the parent waits then, so it begins before that

_decode_job = msgspec.msgpack.Decoder(Job).decode
_decode_setup = msgspec.msgpack.Decoder(Setup).decode
_decode_start = msgspec.msgpack.Decoder(Start).decode


class Worker(asyncio.Protocol):
    """The protocol of the input pipe, and all else that the process has."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = FrameSplitter()
        self._input: asyncio.ReadTransport | None = None
        self._output: asyncio.WriteTransport | None = None
        self._unsent: list[bytes] = []
        self._setup: asyncio.Future[Setup] = self._loop.create_future()
        self._start: asyncio.Future[int] = self._loop.create_future()
        self._early: list[Job] = []  # before there is a driver
        self._ended = False
        self._driver: Driver | None = None
        self._num_ahead = self._bytes_ahead = 0
        self._paused = False
        self._asked_ready = False
        self._turns: dict[int, Callable[[Job], None]] = {}

    async def run(self) -> None:
        self._output, _ = await self._loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout.buffer)
        await self._loop.connect_read_pipe(lambda: self, sys.stdin.buffer)  # what comes may want an answer
        try:
            setup = await self._setup
            pool = Pool(setup.target, self._loop)
            with suppress(OSError):  # a server that is not there fails each request by itself
                await pool.resolve()
            generator = Generator(
                pool,
                lambda on_finish: Driver(
                    pool,
                    setup.options,
                    on_finish,
                    span_ns=setup.span_ns,
                    ask=self._ask,
                    cap=setup.cap,
                    worker=setup.worker,
                ),
                self._finished,
                self._report,
            )
            self._driver = generator.driver
            self._say_ready()
            self._loop.add_signal_handler(signal.SIGTERM, self._driver.stop)
            t0_ns = await self._start
            self._driver.add(self._early, more=not self._ended)
            self._early = []
            self._loop.call_later(FLUSH_S, self._flush_on)
            stats = await generator.run(t0_ns)
            self._unsent.append(frame(Kind.DONE, stats))
        except PacelineError as error:
            self._unsent.append(frame(Kind.FAILED, Failed(str(error))))
        self._flush()
        self._output.close()
        while not self._output.is_closing() or self._output.get_write_buffer_size():
            await asyncio.sleep(0.01)

    # --- input

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._input = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            self._take(data)
        except Exception as error:  # the loop would note it and go on without the frame
            self._send(frame(Kind.FAILED, Failed(f"{type(error).__name__}: {error}")))
            self.connection_lost(error)

    def _take(self, data: bytes) -> None:
        jobs = []
        for kind, body in self._frames.feed(data):
            if kind is Kind.JOB:
                jobs.append(_decode_job(body))
                self._num_ahead += 1
                self._bytes_ahead += len(body)
            elif kind is Kind.TURN:
                job = _decode_job(body)
                self._turns.pop(job.record.id)(job)
            elif kind is Kind.SETUP:
                self._setup.set_result(_decode_setup(body))
            elif kind is Kind.READY:
                self._asked_ready = True
                self._say_ready()
            elif kind is Kind.START:
                self._start.set_result(_decode_start(body).t0_ns)
            elif kind is Kind.END:
                self._ended = True
        if self._driver is None or not self._start.done() or self._early:
            self._early += jobs
        elif jobs or self._ended:
            self._driver.add(jobs, more=not self._ended)
        if self._num_ahead > MAX_AHEAD_JOBS or self._bytes_ahead > MAX_AHEAD_BYTES:
            self._pause()

    def _say_ready(self) -> None:
        """Once asked, and not before the name of the server is looked up: the load would begin late."""
        if self._asked_ready and self._driver is not None:
            self._asked_ready = False
            hush_collector()
            self._send(frame(Kind.IS_READY))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The parent is gone, or has no more to say because it gave up."""
        if self._driver is not None:
            self._driver.stop()
        for waiting in (self._setup, self._start):
            if not waiting.done():
                waiting.cancel()

    def _pause(self) -> None:
        if not self._paused and self._input is not None:
            self._paused = True
            self._input.pause_reading()

    def _resume(self) -> None:
        few = self._num_ahead < MAX_AHEAD_JOBS // 2 and self._bytes_ahead < MAX_AHEAD_BYTES // 2
        if self._paused and few and self._input is not None:
            self._paused = False
            self._input.resume_reading()

    # --- output

    def _ask(self, job: Job, history: list[dict[str, Any]], ready: Callable[[Job], None]) -> None:
        def filled(rendered: Job) -> None:
            job.body, job.path, job.messages = rendered.body, rendered.path, rendered.messages
            job.record.prompt_sha256 = rendered.record.prompt_sha256
            ready(job)

        self._turns[job.record.id] = filled
        self._send(frame(Kind.ASK, AskTurn(job.record.id, history)))

    def _finished(self, done: Finished) -> None:
        self._unsent.append(frame(Kind.RECORD, done))
        if self._num_ahead:
            self._bytes_ahead -= self._bytes_ahead // self._num_ahead  # each its mean share
            self._num_ahead -= 1
        self._resume()

    def _report(self, progress: WorkerProgress) -> None:
        self._unsent.append(frame(Kind.PROGRESS, progress))

    def _send(self, data: bytes) -> None:
        """Now."""
        self._unsent.append(data)
        self._flush()

    def _flush_on(self) -> None:
        self._flush()
        self._loop.call_later(FLUSH_S, self._flush_on)

    def _flush(self) -> None:
        if self._unsent and self._output is not None:
            self._output.write(b"".join(self._unsent))
            self._unsent = []


def raise_file_limit() -> None:
    """Every request at once needs a descriptor of its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _main() -> None:
    with suppress(asyncio.CancelledError):
        await Worker().run()


def main() -> int:
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main())
    return 0


if __name__ == "__main__":
    sys.exit(main())
