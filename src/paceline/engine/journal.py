"""The step journal: everything that went into the scheduler, in order, and the digest of each plan that came out.

The scheduler is a pure function of what it is given, so feeding a fresh one the same events yields the same plans.
That is what a replay checks, and what lets a run on a device be examined later without it.

Events are framed: a 4-byte little-endian length, then one msgpack value. A journal in memory drops the oldest events at
its bound; what is left can be read but, its beginning gone, not replayed. One with a sink (`journal_file`) stops at its
bound instead, and keeps the beginning.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import msgspec

from paceline.contracts.ports import ExecutorCaps, Prices
from paceline.contracts.request import Request
from paceline.contracts.step import StepPlan, StepResult, decode, encode
from paceline.engine.settings import SchedulerSettings
from paceline.errors import EngineError

if TYPE_CHECKING:
    from paceline.engine.scheduler import Scheduler

MAGIC = b"paceline-journal-1\n"
_LENGTH_BYTES = 4


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """What the recording scheduler was built from. First in a file, so that the file alone can be replayed."""

    settings: SchedulerSettings
    caps: ExecutorCaps
    prefix_caching: bool
    share_tenants: bool
    max_chunk_tokens: int
    model_revision: str
    eos_token_ids: tuple[int, ...]
    token_bytes: tuple[bytes, ...] | None
    prices: Prices  # what the cost model knew, by the names of the arguments that make it again


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """A request the scheduler took in (refused ones change nothing and are not kept)."""

    now: float
    request: Request


class Aborted(msgspec.Struct, frozen=True, kw_only=True, tag="aborted"):
    now: float
    request_id: int


class CacheReset(msgspec.Struct, frozen=True, kw_only=True, tag="cache_reset"):
    now: float


class Planned(msgspec.Struct, frozen=True, kw_only=True, tag="planned"):
    """Deadlines were expired and a plan was made, both at `now`. An empty plan has an empty digest."""

    now: float
    step: int
    digest: bytes


class Applied(msgspec.Struct, frozen=True, kw_only=True, tag="applied"):
    now: float
    result: StepResult


Event: TypeAlias = Began | Submitted | Aborted | CacheReset | Planned | Applied


def _decode_event(data: bytes) -> Event:
    return decode(data, Event)  # type: ignore[arg-type]  # msgspec decodes unions, which type[T] cannot say


class StepJournal:
    """Takes events in. Keeps them in memory (the newest `max_bytes` of them) or writes them to `sink` until `max_bytes`
    are there or a write fails: then `ended` says why, `report` is told, and the engine goes on without.

    Each event is flushed: what is written survives the end of the process. The sink is closed by `close` if
    `close_sink`; else its owner does that.
    """

    def __init__(
        self,
        sink: BinaryIO | None = None,
        *,
        max_bytes: int = 64 << 20,
        close_sink: bool = False,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._sink = sink
        self._close_sink = close_sink
        self._report = report
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self.num_bytes = 0
        self.num_events = 0
        self.num_dropped = 0
        self.ended = ""  # why a sink is no longer written to
        if sink is not None:
            self._append(sink, MAGIC)

    def record(self, event: Event) -> None:
        if self.ended:
            self.num_dropped += 1
            return
        data = encode(event)
        frame = len(data).to_bytes(_LENGTH_BYTES, "little") + data
        self.num_events += 1
        if self._sink is not None:
            self._append(self._sink, frame)
            return
        self.num_bytes += len(frame)
        self._frames.append(frame)
        while self.num_bytes > self._max_bytes and len(self._frames) > 1:
            self.num_bytes -= len(self._frames.popleft())
            self.num_dropped += 1

    def _append(self, sink: BinaryIO, data: bytes) -> None:
        if self.num_bytes + len(data) > self._max_bytes:
            self._end(f"it has reached its bound of {self._max_bytes} bytes")
            return
        try:
            sink.write(data)
            sink.flush()
        except (OSError, ValueError) as error:  # ValueError: closed
            self._end(f"it cannot be written: {error}")
            return
        self.num_bytes += len(data)

    def _end(self, why: str) -> None:
        self.ended = why
        self.num_dropped += 1
        if self._report is not None:
            self._report(f"the journal ends here: {why}")

    def close(self) -> None:
        """Record nothing more. Idempotent."""
        if self._sink is None:
            return
        self.ended = self.ended or "it was closed"
        if self._close_sink:
            with suppress(OSError):  # a full disk again, for what could not be written before: that was told
                self._sink.close()

    def to_bytes(self) -> bytes:
        """The journal as a file would hold it. Only for journals kept in memory."""
        assert self._sink is None, "a journal with a sink is read from the sink"
        head = MAGIC if not self.num_dropped else MAGIC.replace(b"\n", b" truncated\n")
        return head + b"".join(self._frames)


def read_events(data: bytes) -> Iterator[Event]:
    """The events of a journal, truncated or not. A last event cut short (a crash while writing) ends the iteration."""
    return read_stream(io.BytesIO(data))


def read_stream(stream: BinaryIO, *, whole: bool = False) -> Iterator[Event]:
    """The same from a stream, one event at a time. `whole`: refuse a journal whose beginning was dropped.

    Raises EngineError for what is not a journal and for an event that does not decode.
    """
    head = stream.readline(2 * len(MAGIC))
    if not head.startswith(MAGIC.rstrip(b"\n")):
        raise EngineError("this is not a step journal", seen=head[:20], expected=f"bytes that begin with {MAGIC!r}")
    if whole and head != MAGIC:
        raise EngineError(
            "the journal's beginning was dropped, so it cannot be replayed",
            fix="record to a file, or raise max_bytes",
        )
    for index in range(1 << 62):
        frame = stream.read(_LENGTH_BYTES)
        size = int.from_bytes(frame, "little")
        if len(frame) < _LENGTH_BYTES or len(data := stream.read(size)) < size:
            return
        try:
            yield _decode_event(data)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise EngineError("the journal is damaged", seen=f"event {index}: {error}") from None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay showed. `digests` are those of the fresh scheduler, one per plan that was not empty."""

    digests: tuple[bytes, ...]
    num_events: int


def replay(data: bytes, make_scheduler: Callable[[], Scheduler]) -> Replay:
    """Feed a fresh scheduler the recorded events; raise EngineError at the first plan that differs.

    `make_scheduler` must build what the recording engine had: the same settings, caps, layout and cost model.
    """
    return replay_events(read_stream(io.BytesIO(data), whole=True), make_scheduler())


def replay_events(events: Iterable[Event], scheduler: Scheduler) -> Replay:
    """`replay` for events that come one by one and a scheduler that is fresh."""
    digests: list[bytes] = []
    num_events = 0
    for event, _ in replayed(events, scheduler):
        num_events += 1
        if isinstance(event, Planned) and event.digest:
            digests.append(event.digest)
    return Replay(digests=tuple(digests), num_events=num_events)


def replayed(events: Iterable[Event], scheduler: Scheduler) -> Iterator[tuple[Event, StepPlan | None]]:
    """Each event once a fresh scheduler has been fed it, and the plan of those that are plans, empty ones too. Raises
    EngineError at the first plan that differs."""
    for event in events:
        plan = None
        if isinstance(event, Submitted):
            scheduler.add(event.request, event.now)
        elif isinstance(event, Aborted):
            scheduler.abort(event.request_id, event.now)
        elif isinstance(event, CacheReset):
            scheduler.reset_prefix_cache(event.now)
        elif isinstance(event, Planned):
            scheduler.expire(event.now)
            plan = scheduler.plan(event.now)
            digest = b"" if plan.is_empty else plan.digest()
            if digest != event.digest:
                raise EngineError(
                    f"the replay left the recording at step {event.step}",
                    seen=f"plan {digest.hex() or 'empty'}",
                    expected=event.digest.hex() or "empty",
                    fix="build the scheduler with the settings, caps and cost model of the recording",
                )
        elif isinstance(event, Applied):
            scheduler.apply(event.result, event.now)
        scheduler.outputs()
        yield event, plan
