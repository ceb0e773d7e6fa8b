"""One request for text on its way: waits for a slot, is answered on an absolute schedule, or left by its client."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from paceline.contracts.artefact import NEVER
from paceline.lab.mock.asks import Ask
from paceline.lab.mock.finishing import Setting
from paceline.lab.mock.log import LogEntry, SentChunk
from paceline.lab.mock.play import End, Piece, Play
from paceline.lab.mock.prefix_cache import PrefixCache
from paceline.lab.mock.replies import play_reply, play_service
from paceline.lab.mock.script import Reply, Service
from paceline.lab.mock.wording import Voice, numbered
from paceline.lab.mock.words import answer_text


class Wire(Protocol):
    """Where a reply goes: one connection."""

    def write(self, data: bytes) -> None: ...

    def finished(self, end: End) -> None:
        """The reply is over; what becomes of the connection."""
        ...


class ServiceState:
    """A `Service` at work: its slots, who waits for them, its prefix cache."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.cache = PrefixCache(service.block_tokens, service.cache_blocks) if service.prefix_cache else None
        self.waiting: deque[Exchange] = deque()
        self.num_busy = 0

    def enter(self, exchange: Exchange, at_ns: int) -> None:
        if self.service.slots is not None and self.num_busy >= self.service.slots:
            self.waiting.append(exchange)
            return
        self.num_busy += 1
        exchange.begin(at_ns)

    def free(self, at_ns: int) -> None:
        """A slot is free since `at_ns`, by the schedule: so a queue does not drift by the lateness of timers."""
        if self.waiting:
            following = self.waiting.popleft()
            following.begin(max(at_ns, following.entry.t_read_ns))
        else:
            self.num_busy -= 1

    def forget(self, exchange: Exchange) -> None:
        if exchange in self.waiting:
            self.waiting.remove(exchange)


class Exchange:
    """`source` is what the script has for this request; `state` is there if that is a service."""

    def __init__(
        self,
        wire: Wire,
        ask: Ask,
        voice: Voice,
        entry: LogEntry,
        source: Reply | Service,
        state: ServiceState | None,
        on_over: Callable[[Exchange], None],
    ) -> None:
        self.ask = ask
        self.entry = entry
        self.over = False  # nothing more is sent and nothing is held
        self._wire = wire
        self._voice = voice
        self._source = source
        self._state = state
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._play: Play | None = None
        self._next = 0
        self._base_ns = 0
        self._holds = False
        self._gone = False
        self._log_chunks = True

    @property
    def running(self) -> bool:
        return self._play is not None and not self.over

    def start(self, *, log_chunks: bool) -> None:
        self._log_chunks = log_chunks
        if self._state is None:
            self.begin(self.entry.t_read_ns)
        else:
            self._state.enter(self, self.entry.t_read_ns)

    def begin(self, at_ns: int) -> None:
        """Its service begins."""
        entry = self.entry
        entry.t_begin_ns = self._base_ns = at_ns
        setting = Setting(self.ask, self._voice, entry.number, at_ns - entry.t_read_ns)
        if isinstance(self._source, Reply):
            self._play = play_reply(self._source, setting)
        else:
            self._holds = True
            cache = self._cache
            if cache is not None:
                setting.cached_tokens = cache.find(self.ask.words, self.ask.salt)
            self._play = play_service(self._source, setting)
        entry.status = self._play.status if self._play.pieces else 0
        entry.cached_tokens = setting.cached_tokens
        self._step()

    @property
    def _cache(self) -> PrefixCache | None:
        return None if self._state is None else self._state.cache

    def _step(self) -> None:
        """Send what is due, and come back for what is not."""
        play, base = self._play, self._base_ns
        assert play is not None
        self._timer = None
        pieces, first = play.pieces, self._next
        now, i, end = time.monotonic_ns() - base, first, len(pieces)
        while i < end and pieces[i].at_ns <= now:
            i += 1
        if i > first:
            self._next = i
            self._send(pieces[first:i])
        elapsed = now if i == end else pieces[i].at_ns - 1
        if self._cache is not None and play.prefilled_ns is not None and play.prefilled_ns <= elapsed:
            self._cache.add(self.ask.words, self.ask.salt)
            play.prefilled_ns = None
        if i < end:
            self._timer = self._loop.call_at((base + pieces[i].at_ns) / 1e9, self._step)
        if self._holds and play.hold_ns <= elapsed and play.end is not End.HANG:
            self._release(base + play.hold_ns)
        if i == end:
            self._end(play)

    def _send(self, due: list[Piece]) -> None:
        data = due[0].data if len(due) == 1 else b"".join([piece.data for piece in due])
        if data and not self._gone:
            self._wire.write(numbered(data, self.entry.number))
        stamp, entry, base = time.monotonic_ns(), self.entry, self._base_ns
        if self._gone:
            return
        if entry.t_headers_ns == NEVER:
            entry.t_headers_ns = stamp
        entry.t_end_ns = stamp
        for at_ns, _, kind, num_tokens in due:
            if num_tokens:
                entry.sent(num_tokens, stamp)
            if kind is not None and self._log_chunks:
                entry.chunks.append(SentChunk(base + at_ns, stamp, kind, num_tokens))

    def _end(self, play: Play) -> None:
        if play.end is End.HANG and not self._gone:
            return  # until the client leaves
        if not self._gone:
            self.entry.outcome = "done" if play.end is End.KEEP else "cut"
        self._finish()
        if not self._gone:
            self._wire.finished(play.end)

    def client_left(self) -> None:
        """The connection is gone. Unless the service works on, the slot is free `reclaim_ms` later."""
        if self.over or self._gone:
            return
        self._gone = True
        self.entry.outcome = "client_closed"
        self.entry.t_closed_ns = now = time.monotonic_ns()
        if self._state is not None and self._play is None:
            self._state.forget(self)
            self._finish()
            return
        service = self._source if isinstance(self._source, Service) else None
        hangs = self._play is not None and self._play.end is End.HANG
        if service is not None and service.ignores_close and not hangs:
            return
        if self._timer is not None:
            self._timer.cancel()
        if service is not None and service.reclaim_ms and self._holds:
            at_ns = now + round(service.reclaim_ms * 1e6)
            self._timer = self._loop.call_at(at_ns / 1e9, self._stop, at_ns)
        else:
            self._stop(now)

    def _stop(self, at_ns: int) -> None:
        if self._holds:
            self._release(at_ns)
        self._finish()

    def _finish(self) -> None:
        self.over = True
        self._on_over(self)

    def _release(self, at_ns: int) -> None:
        self._holds = False
        if self._cache is not None and self.entry.num_tokens_sent > 1:  # as in an engine, all but the newest token
            answer = answer_text(0, self.entry.num_tokens_sent - 1).split()
            self._cache.add([*self.ask.words, *answer], self.ask.salt)
        self.entry.t_freed_ns = at_ns
        if self._state is not None:
            self._state.free(at_ns)

    def cancel(self) -> None:
        """The server stops."""
        if self._timer is not None:
            self._timer.cancel()
        self.over = True
