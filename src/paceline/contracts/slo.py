"""The one definition of TTFT, ITL, TPOT, E2E and goodput, for engine, server metrics, lab and simulator.

All times are seconds on one monotonic clock. `math.nan` means undefined (and says so to whoever formats it); it is
never 0. In a closed loop or on the server's side there is no schedule, and `planned` is the arrival at the socket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    TRUNCATED = "truncated"
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    CLIENT_CANCEL = "client_cancel"
    DISCONNECT = "disconnect"
    NOT_SENT = "not_sent"


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Latency targets in seconds; None asks nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class Timeline(msgspec.Struct, kw_only=True):
    """When things happened to one request."""

    planned: float  # when the schedule wanted it sent; the arrival where there is no schedule
    arrival: float  # when the engine took it in
    admitted: float = math.nan  # first scheduled
    chunks: list[tuple[float, int]] = msgspec.field(default_factory=list)  # (time, tokens delivered), in order
    end: float = math.nan  # terminal event
    # when its KV blocks were free for others: `end`, or later by the steps in flight that still touched them. Known in
    # the terminal output if no such step is left then; else nan there, and filled in later where the engine shares
    # this object (its own process)
    blocks_free: float = math.nan
    outcome: Outcome = Outcome.OK

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.chunks)

    @property
    def queue_s(self) -> float:
        """Arrival to first scheduled."""
        return self.admitted - self.arrival

    @property
    def first_token(self) -> float:
        """When the first token was there."""
        return self.chunks[0][0] if self.chunks else math.nan

    @property
    def prefill_s(self) -> float:
        """First scheduled to the first token."""
        return self.first_token - self.admitted

    @property
    def ttft_s(self) -> float:
        """Planned time to the first token."""
        return self.first_token - self.planned

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first chunk, the tokens of that first chunk excluded; nan if there are none."""
        if not self.chunks:
            return math.nan
        later = self.num_tokens - self.chunks[0][1]
        return (self.chunks[-1][0] - self.chunks[0][0]) / later if later > 0 else math.nan

    @property
    def e2e_s(self) -> float:
        """Planned time to the last token."""
        return self.chunks[-1][0] - self.planned if self.chunks else math.nan

    def itl_s(self) -> list[float]:
        """Inter-token latencies: each gap between chunks spread over the tokens it brought. Their mean is TPOT."""
        gaps: list[float] = []
        for (before, _), (after, count) in zip(self.chunks, self.chunks[1:], strict=False):
            gaps.extend([(after - before) / count] * count)
        return gaps

    def is_good(self, slo: Slo, *, valid: bool = True) -> bool:
        """Ended well, within every target, and valid. An undefined TPOT of one chunk is vacuously met."""
        if self.outcome is not Outcome.OK or not valid:
            return False
        if slo.ttft_s is not None and not self.ttft_s <= slo.ttft_s:
            return False
        if slo.e2e_s is not None and not self.e2e_s <= slo.e2e_s:
            return False
        if slo.tpot_s is None:
            return True
        vacuous = bool(self.chunks) and self.num_tokens <= self.chunks[0][1]
        return vacuous or self.tpot_s <= slo.tpot_s


def goodput(timelines: Sequence[Timeline], slo: Slo, window_s: float) -> float:
    """Good requests per second of the window (whose arrivals `timelines` must be)."""
    return sum(t.is_good(slo) for t in timelines) / window_s


def percentile(samples: Sequence[float], q: float) -> float:
    """Inverted-CDF percentile, `0 < q <= 1`: percentile(x, q) <= L if and only if a share q of the samples is <= L.

    nan samples count as +inf (a request without a first token did not meet any target). Empty gives nan.
    """
    if not samples:
        return math.nan
    ordered = sorted(math.inf if math.isnan(s) else s for s in samples)
    return ordered[max(0, math.ceil(q * len(ordered) - 1e-9) - 1)]


def min_samples(q: float, confidence: float = 0.95) -> int:
    """Fewest samples for which an upper confidence bound of the percentile exists: 59 for p95, 299 for p99."""
    return math.ceil(math.log(1 - confidence) / math.log(q))
