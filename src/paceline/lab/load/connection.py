"""One HTTP/1.1 connection that carries one request at a time, and what a request meets on it.

The time of a read is taken once, as its bytes arrive, before anything is parsed; everything in that read gets it. Times
are nanoseconds since the start of the load. There are no retries: a connection that fails takes its request with it,
and the record says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httptools

from paceline.contracts.artefact import NEVER
from paceline.contracts.slo import Outcome
from paceline.lab.load.answer import Answer
from paceline.lab.load.job import Job
from paceline.lab.load.sse import EventSplitter, EventTooLongError

MAX_BODY_BYTES = 64 << 20  # of an answer that is not streamed
ADMISSION = frozenset({429, 503})  # the server is well and does not want it now


class Attempt:
    """One request on its way. `finish` is called once, whatever happens."""

    __slots__ = (
        "answer",
        "cancel_after",
        "conn",
        "job",
        "num_body_bytes",
        "on_finish",
        "outcome",
        "plain",
        "reason",
        "retry_after",
        "splitter",
        "status",
        "t_close",
        "t_headers",
        "t_plan",
        "t_send",
        "timer",
    )

    def __init__(
        self, job: Job, t_plan: int, t_send: int, on_finish: Callable[[Attempt], None], *, keep: bool = False
    ) -> None:
        self.job = job
        self.t_plan, self.t_send, self.t_headers, self.t_close = t_plan, t_send, NEVER, NEVER
        self.on_finish = on_finish
        self.answer = Answer(keep=keep)
        self.splitter: EventSplitter | None = None  # None: the answer is not a stream of events
        self.plain: list[bytes] = []
        self.num_body_bytes = 0
        self.status = 0
        self.retry_after = ""
        self.outcome: Outcome | None = None
        self.reason = ""
        self.conn: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None
        faults = job.faults
        self.cancel_after = faults.cancel_after_tokens if job.record.streamed else None

    # --- from the connection

    def on_headers(self, status: int, event_stream: bool, retry_after: str, t_ns: int) -> None:
        self.status, self.t_headers, self.retry_after = status, t_ns, retry_after
        if event_stream and 200 <= status < 300:
            self.splitter = EventSplitter()

    def on_body(self, data: bytes, t_ns: int) -> None:
        if self.splitter is None:
            self.num_body_bytes += len(data)
            if self.num_body_bytes > MAX_BODY_BYTES:
                self.give_up(Outcome.STREAM_ERROR, f"too_long: more than {MAX_BODY_BYTES} bytes", t_ns)
            self.plain.append(data)
            return
        answer = self.answer
        try:
            events = self.splitter.feed(data)
        except EventTooLongError:
            self.give_up(Outcome.STREAM_ERROR, "too_long: an event does not end", t_ns)
            return
        for event in events:
            answer.on_event(event, t_ns)
            if self.cancel_after is not None and answer.num_seen >= self.cancel_after and self.outcome is None:
                self.give_up(Outcome.CLIENT_CANCEL, f"after {answer.num_seen} tokens", t_ns)
                return

    def on_complete(self, t_ns: int) -> None:
        """The transport brought all of it."""
        if self.outcome is not None:
            return
        record, answer = self.job.record, self.answer
        if 200 <= self.status < 300:
            if self.splitter is None:
                answer.on_whole(b"".join(self.plain), t_ns)
            else:
                for event in self.splitter.end():
                    answer.on_event(event, t_ns)
            outcome, reason = answer.judge(record.num_output_asked, exact=self.job.exact)
        else:
            outcome = Outcome.REJECTED if self.status in ADMISSION else Outcome.HTTP_ERROR
            answer.on_whole(b"".join(self.plain), t_ns)
            answer.chunks.clear()  # the error is the status, not a chunk of an answer
            reason = f"{self.status} {answer.error or ''}".rstrip()
            if self.retry_after:
                reason += f" (retry-after: {self.retry_after})"
        self.finish(outcome, reason, t_ns)

    def on_lost(self, why: str, t_ns: int) -> None:
        """The connection broke."""
        if self.outcome is not None:
            return
        if self.t_headers == NEVER:
            self.finish(Outcome.HTTP_ERROR, f"no_answer: {why}", t_ns)
        else:
            self.finish(Outcome.STREAM_ERROR, f"cut: {why}", t_ns)

    # --- the end

    def give_up(self, outcome: Outcome, reason: str, t_ns: int, *, abort: bool = False) -> None:
        """The client wants no more of it: the connection is closed, politely or at once."""
        conn = self.conn
        self.finish(outcome, reason, t_ns)
        if conn is not None:
            conn.drop(abort=abort)

    def finish(self, outcome: Outcome, reason: str, t_ns: int) -> None:
        if self.outcome is not None:
            return
        self.outcome, self.reason, self.t_close = outcome, reason, t_ns
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.conn = None
        self.plain = []
        self.on_finish(self)


class Connection(asyncio.Protocol):
    """Made by `loop.create_connection`. `on_idle` takes it back when it can carry another request."""

    __slots__ = (
        "_attempt",
        "_chunked",
        "_clock",
        "_event_stream",
        "_now",
        "_on_gone",
        "_on_idle",
        "_parser",
        "_retry_after",
        "_sized",
        "_transport",
        "idle_since",
    )

    def __init__(
        self,
        clock: Callable[[], int],
        on_idle: Callable[[Connection], None],
        on_gone: Callable[[Connection], None],
    ) -> None:
        self._clock = clock
        self._on_idle = on_idle
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._attempt: Attempt | None = None
        self._now = 0
        self.idle_since = 0
        self._reset()

    def _reset(self) -> None:
        self._event_stream = self._chunked = self._sized = False
        self._retry_after = ""

    def send(self, attempt: Attempt, head: bytes) -> None:
        """Only on an idle connection."""
        assert self._transport is not None, "sent on a connection that is not open"
        self._attempt, attempt.conn = attempt, self
        self._reset()
        self._transport.write(head + attempt.job.body)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._attempt is None

    def drop(self, *, abort: bool = False) -> None:
        """Close it, whatever it carries."""
        self._attempt = None
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        if self._parser is None or self._attempt is None:
            self.drop()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("an upgrade that nobody asked for")
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {type(error).__name__}")

    def eof_received(self) -> None:
        return None  # close

    def connection_lost(self, exc: Exception | None) -> None:
        attempt, self._attempt = self._attempt, None
        self._transport = None
        self._parser = None  # it holds this object
        self._on_gone(self)
        if attempt is None:
            return
        now = self._clock()
        if attempt.t_headers != NEVER and exc is None and not (self._chunked or self._sized):
            attempt.on_complete(now)  # its end is the end of the connection
        else:
            attempt.on_lost("closed by the server" if exc is None else type(exc).__name__, now)

    def _fail(self, why: str) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.give_up(Outcome.STREAM_ERROR if attempt.status else Outcome.HTTP_ERROR, why, self._now)

    # --- the parser's calls

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._event_stream = value[:17].lower() == b"text/event-stream"
        elif name == b"transfer-encoding":
            self._chunked = b"chunked" in value.lower()
        elif name == b"content-length":
            self._sized = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")[:64]

    def on_headers_complete(self) -> None:
        if self._attempt is None or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status >= 200:  # others only say that the answer will come
            self._attempt.on_headers(status, self._event_stream, self._retry_after, self._now)

    def on_body(self, body: bytes) -> None:
        if self._attempt is not None:
            self._attempt.on_body(body, self._now)

    def on_message_complete(self) -> None:
        attempt, parser = self._attempt, self._parser
        if attempt is None or parser is None:
            return
        if attempt.t_headers == NEVER:  # 1xx
            self._reset()
            return
        self._attempt = None
        reusable = parser.should_keep_alive() and self._transport is not None and not self._transport.is_closing()
        if reusable:
            self.idle_since = self._now
            self._on_idle(self)
        attempt.conn = None
        attempt.on_complete(self._now)
        if not reusable:
            self.drop()
