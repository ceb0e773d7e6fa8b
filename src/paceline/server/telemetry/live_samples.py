"""From the engine's counters to what a chart shows: a pure decider, time is passed in.

A sample is a look at the engine plus what happened in the last two seconds, by the difference of two looks. Over less,
an engine whose steps are slow would seem to stop between them. Counters start at zero in a new engine process, and
nobody may have looked for a while; then there is no difference, and rates are left out rather than guessed.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, Protocol

import msgspec

from paceline.contracts.ports import EngineStats
from paceline.contracts.slo import percentile

State = Literal["loading", "ready", "stalled", "restarting", "draining"]
MAX_DOTS = 40  # finished requests that one sample names
RATE_S = 2.0


class Finished(Protocol):
    """What is asked of a finished request's record. Seconds; nan where undefined."""

    @property
    def ttft_s(self) -> float: ...

    @property
    def tpot_s(self) -> float: ...


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One point of every chart. A field is absent when there is nothing to say; absent is never zero."""

    t: float  # seconds, the server's monotonic clock
    state: State
    why: str = ""  # what a state other than ready means, in words
    phases: dict[str, float] | None = None  # seconds of start-up phases that are over; while loading or restarting
    restarts: int = 0
    # now
    running: int | None = None
    waiting: int | None = None
    waiting_tokens: int | None = None
    held: int | None = None  # KV blocks in use, those in limbo included
    cached: int | None = None
    free: int | None = None
    preemptions: int | None = None  # since the engine started
    # over the last RATE_S
    steps: int | None = None
    step_prompt: float | None = None  # mean tokens per step that are not output: prompts, recomputation
    step_output: float | None = None  # mean output tokens per step
    output_tps: float | None = None
    prompt_tps: float | None = None  # prompt tokens computed, not those found in the cache
    device_ms: float | None = None  # of the newest step
    host_ms: float | None = None
    finished: list[tuple[float, float | None]] | None = None  # (TTFT, TPOT) in ms
    # over the window
    hit_rate: float | None = None  # prompt tokens found in the cache / asked for
    num_ttft: int = 0
    ttft_p50: float | None = None  # ms
    ttft_p95: float | None = None
    num_tpot: int = 0
    tpot_p50: float | None = None  # ms
    tpot_p95: float | None = None


class Sampler:
    """Turns looks into samples. `window_s`: how far hit rate and percentiles look back. `max_gap_s`: looks further
    apart than this have nothing in common."""

    def __init__(self, *, window_s: float = 60.0, max_gap_s: float = 5.0, max_finished: int = 4096) -> None:
        self._window_s = window_s
        self._max_gap_s = max_gap_s
        self._looks: deque[tuple[float, EngineStats]] = deque()  # of one engine's life, oldest first
        self._life = -1
        self._finished: deque[tuple[float, float, float]] = deque(maxlen=max_finished)  # (t, TTFT ms, TPOT ms)
        self._news: deque[tuple[float, float | None]] = deque(maxlen=MAX_DOTS)

    def on_finish(self, record: Finished, now: float) -> None:
        """Note a request that ended with a first token at least."""
        ttft_ms, tpot_ms = record.ttft_s * 1e3, record.tpot_s * 1e3
        if math.isnan(ttft_ms):
            return
        self._finished.append((now, ttft_ms, tpot_ms))
        self._news.append((round(ttft_ms, 2), None if math.isnan(tpot_ms) else round(tpot_ms, 2)))

    def take(
        self,
        now: float,
        stats: EngineStats | None,
        *,
        state: State,
        why: str = "",
        phases: dict[str, float] | None = None,
        restarts: int = 0,
    ) -> Sample:
        """The sample at `now`. `stats` is None when the engine does not answer; `restarts` tells its lives apart."""
        fields: dict[str, object] = {"t": round(now, 3), "state": state, "why": why, "restarts": restarts}
        if state != "ready":
            fields["phases"] = phases
        if stats is not None:
            fields |= self._now(stats)
            before = self._remember(now, stats, restarts)
            if before is not None:
                fields |= _since(now - before[0], before[1], stats)
            fields["hit_rate"] = self._hit_rate(now, stats)
        fields |= self._latencies(now)
        return msgspec.convert(fields, Sample)

    def _now(self, stats: EngineStats) -> dict[str, object]:
        kv = stats.kv
        return {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "waiting_tokens": stats.waiting_tokens,
            "held": kv.held + kv.limbo,
            "cached": kv.cached,
            "free": kv.free,
            "preemptions": stats.num_preemptions,
        }

    def _remember(self, now: float, stats: EngineStats, life: int) -> tuple[float, EngineStats] | None:
        """Note the look; the one to compare it to, if there is one of the same engine and without a gap between."""
        looks = self._looks
        if looks and (life != self._life or now - looks[-1][0] > self._max_gap_s or _went_back(looks[-1][1], stats)):
            looks.clear()
        self._life = life
        before = next((look for look in reversed(looks) if look[0] <= now - RATE_S), looks[0] if looks else None)
        looks.append((now, stats))
        while len(looks) > 1 and looks[1][0] <= now - self._window_s:
            looks.popleft()
        return before

    def _hit_rate(self, now: float, stats: EngineStats) -> float | None:
        """Over the looks of the window."""
        first = self._looks[0][1].kv
        asked = stats.kv.query_tokens - first.query_tokens
        return round((stats.kv.hit_tokens - first.hit_tokens) / asked, 4) if asked > 0 else None

    def _latencies(self, now: float) -> dict[str, object]:
        finished = self._finished
        while finished and finished[0][0] < now - self._window_s:
            finished.popleft()
        fields: dict[str, object] = {}
        tpots = [tpot for _, _, tpot in finished if not math.isnan(tpot)]
        for name, values in (("ttft", [ttft for _, ttft, _ in finished]), ("tpot", tpots)):
            if values:
                fields[f"num_{name}"] = len(values)
                fields[f"{name}_p50"] = round(percentile(values, 0.50), 2)
                fields[f"{name}_p95"] = round(percentile(values, 0.95), 2)
        if self._news:
            fields["finished"] = list(self._news)
            self._news.clear()
        return fields


def _went_back(before: EngineStats, after: EngineStats) -> bool:
    """A counter that falls belongs to another engine."""
    return (
        after.step < before.step
        or after.computed_tokens < before.computed_tokens
        or after.output_tokens < before.output_tokens
        or after.kv.query_tokens < before.kv.query_tokens
        or after.kv.hit_tokens < before.kv.hit_tokens
    )


def _since(elapsed_s: float, before: EngineStats, after: EngineStats) -> dict[str, object]:
    """What happened between two looks at one engine."""
    if elapsed_s <= 0.0:
        return {}
    steps = after.step - before.step
    computed = after.computed_tokens - before.computed_tokens
    output = after.output_tokens - before.output_tokens
    prompt = max(0, computed - output)  # output held back for a stop string may come after its step
    fields: dict[str, object] = {
        "steps": steps,
        "output_tps": round(output / elapsed_s, 2),
        "prompt_tps": round(prompt / elapsed_s, 2),
    }
    if steps > 0 and computed > 0:
        fields["step_prompt"] = round(prompt / steps, 2)
        fields["step_output"] = round(min(output, computed) / steps, 2)
        last = after.last_step
        if "device_ms" in last:
            fields["device_ms"] = round(last["device_ms"], 3)
        if "host_us" in last:
            fields["host_ms"] = round(last["host_us"] / 1e3, 3)
    return fields


__all__ = ["MAX_DOTS", "RATE_S", "Finished", "Sample", "Sampler", "State"]
