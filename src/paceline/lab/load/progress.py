"""What is shown while a load runs. Approximate on purpose: metrics come from the records."""

from __future__ import annotations

import time
from collections import deque

import msgspec

from paceline.contracts.slo import percentile
from paceline.lab.load.generator import WorkerProgress

RATE_OVER_S = 5.0
MAX_SAMPLES = 2000  # the newest


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; None where nothing is known yet."""

    elapsed_s: float
    span_s: float  # 0: no fixed end
    num_planned: int
    num_sent: int = 0
    num_in_flight: int = 0
    num_done: int = 0
    num_failed: int = 0  # every outcome but ok
    rate_rps: float | None = None  # sent per second, lately
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_p50_s: float | None = None
    time_left_s: float | None = None
    draining: bool = False  # all is sent, or the time for sending is over


class ProgressBoard:
    """Puts the reports of all workers together."""

    def __init__(self, *, num_planned: int, span_s: float) -> None:
        self._num_planned = num_planned
        self._span_s = span_s
        self._began_s = time.monotonic()
        self._last: dict[int, WorkerProgress] = {}
        self._sent: deque[tuple[float, int]] = deque()
        self._ttft_s: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._tpot_s: deque[float] = deque(maxlen=MAX_SAMPLES)

    def begin(self) -> None:
        """The load begins now."""
        self._began_s = time.monotonic()
        self._sent.append((self._began_s, 0))

    def take(self, worker: int, report: WorkerProgress) -> None:
        self._last[worker] = msgspec.structs.replace(report)
        self._ttft_s.extend(report.ttft_s)
        self._tpot_s.extend(report.tpot_s)

    def now(self) -> Progress:
        now = time.monotonic()
        elapsed_s = now - self._began_s
        num_sent, num_done = self._sum("num_sent"), self._sum("num_done")
        self._sent.append((now, num_sent))
        while len(self._sent) > 2 and self._sent[1][0] < now - RATE_OVER_S:
            self._sent.popleft()
        then, sent_then = self._sent[0]
        draining = num_sent >= self._num_planned or 0 < self._span_s <= elapsed_s
        return Progress(
            elapsed_s=elapsed_s,
            span_s=self._span_s,
            num_planned=self._num_planned,
            num_sent=num_sent,
            num_in_flight=self._sum("num_in_flight"),
            num_done=num_done,
            num_failed=self._sum("num_failed"),
            rate_rps=(num_sent - sent_then) / (now - then) if now > then else None,
            ttft_p50_s=_percentile(self._ttft_s, 0.5),
            ttft_p95_s=_percentile(self._ttft_s, 0.95),
            tpot_p50_s=_percentile(self._tpot_s, 0.5),
            time_left_s=self._time_left(elapsed_s, num_done),
            draining=draining,
        )

    def _sum(self, name: str) -> int:
        return sum(int(getattr(report, name)) for report in self._last.values())

    def _time_left(self, elapsed_s: float, num_done: int) -> float | None:
        if self._span_s > 0:
            return max(0.0, self._span_s - elapsed_s)
        return elapsed_s * (self._num_planned - num_done) / num_done if num_done else None


def _percentile(samples: deque[float], q: float) -> float | None:
    return percentile(list(samples), q) if samples else None
