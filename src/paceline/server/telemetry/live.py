"""The live feed: what the engine does, for people who look at the page.

It asks the engine twice a second, and only while somebody looks; each answer is encoded once for all viewers. A ring of
the last minutes gives a new viewer its history. The feed outlives engines: while one is gone it says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from paceline.contracts.decision import Decision
from paceline.contracts.ports import EngineStats
from paceline.errors import EngineError, QueueFullError
from paceline.server.telemetry.decision_words import in_words
from paceline.server.telemetry.live_samples import Finished, Sample, Sampler, State

_RECENT = 50  # decisions kept for a new viewer
_ENCODER = msgspec.json.Encoder()


class LiveSource(Protocol):
    """The engine as the feed sees it: `server.session.EngineSession`."""

    @property
    def ready(self) -> bool: ...

    @property
    def why_not_ready(self) -> str: ...

    @property
    def restarts(self) -> int: ...

    @property
    def phases(self) -> Mapping[str, float]: ...

    def stats(self) -> Coroutine[Any, Any, EngineStats]:
        """Raises EngineError when there is no engine."""
        ...


class Viewer:
    """One reader of the feed. Iterate over it for server-sent events; `close` when it is gone (idempotent)."""

    def __init__(self, feed: LiveFeed, first: bytes, *, max_behind: int) -> None:
        self._feed = feed
        self._max_behind = max_behind
        self._events: deque[bytes] = deque([first])
        self._changed = asyncio.Event()
        self._changed.set()
        self._closed = False

    def push(self, event: bytes) -> None:
        """A reader who does not keep up is let go: it comes back and gets the history."""
        if len(self._events) >= self._max_behind:
            self.close()
            return
        self._events.append(event)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._feed.leave(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                while self._events:
                    yield self._events.popleft()
                if self._closed:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.close()


class LiveFeed:
    """Belongs to one event loop. `about` is what a viewer is told once (model, server). An engine that has not answered
    for `patience_s` is shown as stalled; there is never more than one question open."""

    def __init__(
        self,
        source: LiveSource,
        *,
        about: Mapping[str, Any] | None = None,
        interval_s: float = 0.5,
        history_s: float = 180.0,
        max_viewers: int = 16,
        patience_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._about = dict(about or {})
        self._interval_s = interval_s
        self._max_viewers = max_viewers
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep
        self._sampler = Sampler(max_gap_s=max(5.0, 3 * interval_s))
        self._samples: deque[Sample] = deque(maxlen=max(1, round(history_s / interval_s)))
        self._decisions: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._life = -1  # restarts at the last look
        self._known: set[tuple[float, int, int, str]] = set()  # decisions of that look
        self._viewers: set[Viewer] = set()
        self._asked: asyncio.Task[EngineStats] | None = None
        self._asked_at = 0.0
        self._was_ready = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def num_viewers(self) -> int:
        return len(self._viewers)

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def on_finish(self, record: Finished) -> None:
        """A request ended; kept whether or not somebody looks. Costs two appends."""
        self._sampler.on_finish(record, self._clock())

    def watch(self) -> Viewer:
        """A new viewer, which starts with the history. Raises QueueFullError when there are too many."""
        if self._closed:
            raise EngineError("the server is going down and shows nothing new", fix="look at its successor")
        if len(self._viewers) >= self._max_viewers:
            raise QueueFullError(
                "too many viewers look at the live page",
                seen=len(self._viewers),
                expected=f"at most {self._max_viewers}",
                fix="close a tab; /metrics has the same numbers",
            )
        history = {
            **self._about,
            "interval_s": self._interval_s,
            "samples": list(self._samples),
            "decisions": list(self._decisions),
        }
        viewer = Viewer(self, _event("history", history), max_behind=round(10 / self._interval_s))
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="paceline-live")
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """The last one to leave ends the sampling."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """End every stream. Idempotent; call it before the server waits for its connections to end."""
        self._closed = True
        for viewer in list(self._viewers):
            viewer.close()
        if self._asked is not None:
            self._asked.cancel()
            with suppress(asyncio.CancelledError, EngineError):
                await self._asked

    async def _run(self) -> None:
        try:
            while True:
                began = self._clock()
                await self._look()
                await self._sleep(max(0.0, began + self._interval_s - self._clock()))
        except Exception:
            self._task = None
            for viewer in list(self._viewers):  # they come back, and a new task starts
                viewer.close()
            raise

    async def _look(self) -> None:
        stats = await self._ask()
        now = self._clock()
        state, why = self._state(stats, now)
        sample = self._sampler.take(
            now,
            stats,
            state=state,
            why=why,
            phases=dict(self._source.phases),
            restarts=self._source.restarts,
        )
        self._samples.append(sample)
        events = _event("sample", sample)
        fresh = self._fresh(stats, now) if stats is not None else []
        if fresh:
            self._decisions.extend(fresh)
            events += _event("decisions", fresh)
        for viewer in list(self._viewers):
            viewer.push(events)

    async def _ask(self) -> EngineStats | None:
        """What the engine says, or None if it is gone or slow. A slow answer is waited for at the next look."""
        if self._asked is not None and self._asked.done() and self._clock() - self._asked_at > 4 * self._interval_s:
            self._answer()  # it came when nobody looked any more
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_task(self._source.stats())
            self._asked_at = self._clock()
        await asyncio.wait({self._asked}, timeout=self._interval_s)
        return self._answer() if self._asked.done() else None

    def _answer(self) -> EngineStats | None:
        task, self._asked = self._asked, None
        assert task is not None
        if task.cancelled() or isinstance(task.exception(), EngineError):
            return None
        return task.result()

    def _state(self, stats: EngineStats | None, now: float) -> tuple[State, str]:
        source = self._source
        if stats is not None and stats.stalled:
            trouble = source.why_not_ready or stats.trouble or "a step takes suspiciously long"
            return "stalled", trouble.partition("\n")[0]
        if not source.ready:
            if stats is not None:
                return "draining", source.why_not_ready
            return ("restarting" if self._was_ready or source.restarts else "loading"), source.why_not_ready
        self._was_ready = True
        silent_s = now - self._asked_at if self._asked is not None else 0.0
        if silent_s > self._patience_s:
            return "stalled", f"the engine has not answered for {silent_s:.0f} s"
        return "ready", ""

    def _fresh(self, stats: EngineStats, now: float) -> list[dict[str, Any]]:
        """Decisions that were not seen before, as the page shows them."""
        life = self._source.restarts
        known = self._known if life == self._life else set()
        self._life, self._known = life, {_identity(d) for d in stats.recent}
        return [
            {
                "t": round(now - (stats.time - d.time), 3),  # both of the engine's clock
                "step": d.step,
                "request": d.request_id,
                "kind": d.kind.value,
                "reason": d.reason.value,
                "words": in_words(d),
            }
            for d in stats.recent
            if _identity(d) not in known
        ]


def _identity(decision: Decision) -> tuple[float, int, int, str]:
    return decision.time, decision.step, decision.request_id, decision.reason.value


def _event(name: str, value: object) -> bytes:
    """One server-sent event. JSON holds no line break, so the value is one data line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _ENCODER.encode(value))


__all__ = ["LiveFeed", "LiveSource", "Viewer"]
