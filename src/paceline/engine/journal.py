"""The step journal: everything that went into the scheduler, in order, and the digest of each plan that came out.

The scheduler is a pure function of what it is given, so feeding a fresh one the same events yields the same plans.
That is what a replay checks, and what lets a run on a device be examined later without it.

Events are framed: a 4-byte little-endian length, then one msgpack value. Bounded journals drop the oldest events;
what is left can be read but, its beginning gone, not replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import msgspec

from paceline.contracts.request import Request
from paceline.contracts.step import StepResult, decode, encode
from paceline.errors import EngineError

if TYPE_CHECKING:
    from paceline.engine.scheduler import Scheduler

MAGIC = b"paceline-journal-1\n"
_LENGTH_BYTES = 4


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


Event: TypeAlias = Submitted | Aborted | CacheReset | Planned | Applied


def _decode_event(data: bytes) -> Event:
    return decode(data, Event)  # type: ignore[arg-type]  # msgspec decodes unions, which type[T] cannot say


class StepJournal:
    """Takes events in. Keeps them in memory (the newest `max_bytes` of them) or appends them to `sink`.

    A sink is written to but never closed; its owner opened it.
    """

    def __init__(self, sink: BinaryIO | None = None, *, max_bytes: int = 64 << 20) -> None:
        self._sink = sink
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self.num_bytes = 0
        self.num_events = 0
        self.num_dropped = 0
        if sink is not None:
            sink.write(MAGIC)

    def record(self, event: Event) -> None:
        data = encode(event)
        frame = len(data).to_bytes(_LENGTH_BYTES, "little") + data
        self.num_events += 1
        self.num_bytes += len(frame)
        if self._sink is not None:
            self._sink.write(frame)
            return
        self._frames.append(frame)
        while self.num_bytes > self._max_bytes and len(self._frames) > 1:
            self.num_bytes -= len(self._frames.popleft())
            self.num_dropped += 1

    def to_bytes(self) -> bytes:
        """The journal as a file would hold it. Only for journals kept in memory."""
        assert self._sink is None, "a journal with a sink is read from the sink"
        head = MAGIC if not self.num_dropped else MAGIC.replace(b"\n", b" truncated\n")
        return head + b"".join(self._frames)


def read_events(data: bytes) -> Iterator[Event]:
    """The events of a journal, truncated or not. A last event cut short (a crash while writing) ends the iteration."""
    head, _, _ = data.partition(b"\n")
    if not head.startswith(MAGIC.rstrip(b"\n")):
        raise EngineError("this is not a step journal", seen=data[:20], expected=f"bytes that begin with {MAGIC!r}")
    at = len(head) + 1
    while at + _LENGTH_BYTES <= len(data):
        size = int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        if at + size > len(data):
            return
        yield _decode_event(data[at : at + size])
        at += size


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay showed. `digests` are those of the fresh scheduler, one per plan that was not empty."""

    digests: tuple[bytes, ...]
    num_events: int


def replay(
    data: bytes,
    make_scheduler: Callable[[], Scheduler],
) -> Replay:
    """Feed a fresh scheduler the recorded events; raise EngineError at the first plan that differs.

    `make_scheduler` must build what the recording engine had: the same settings, caps, layout and cost model.
    """
    if data.startswith(MAGIC.rstrip(b"\n") + b" truncated"):
        raise EngineError(
            "the journal's beginning was dropped, so it cannot be replayed",
            fix="record to a file, or raise max_bytes",
        )
    scheduler = make_scheduler()
    digests: list[bytes] = []
    num_events = 0
    for event in read_events(data):
        num_events += 1
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
            if digest:
                digests.append(digest)
        else:
            scheduler.apply(event.result, event.now)
        scheduler.outputs()
    return Replay(digests=tuple(digests), num_events=num_events)
