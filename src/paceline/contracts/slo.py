"""The one definition of TTFT, ITL, TPOT, E2E and goodput, for engine, server metrics, lab and simulator.

All times are seconds on one monotonic clock. `math.nan` means undefined (and says so to whoever formats it); it is
never 0. In a closed loop or on the server's side there is no schedule, and `planned` is the arrival at the socket.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from paceline.errors import ConfigError


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


TARGETS = ("ttft", "tpot", "e2e")
"""What the terms of an `Slo` are called where people write them: see `parse_times`."""


def parse_times(text: str, terms: Sequence[str] = TARGETS, *, also: str = "") -> dict[str, float]:
    """Seconds by term, from "ttft=1s,tpot=60ms". Raises ConfigError for another term than `terms`, one given twice, a
    time without a unit (s or ms) or of 0, and for nothing at all. `also`: what else may stand there, for the error."""
    found: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        term, _, value = (p.strip() for p in part.partition("="))
        time = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s)", value)
        if term not in terms or time is None or not float(time[1]) > 0:
            close = difflib.get_close_matches(term[:80], terms, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else ""
            raise ConfigError(
                "a target was not understood",
                seen=part[:80],
                expected=f"TERM=TIME above 0 with a unit, TERM one of {', '.join(terms)}{also}",
                fix=hint if term not in terms else f"{term}=500ms",
            )
        if term in found:
            raise ConfigError("a target is given twice", seen=part[:80], fix="leave one out")
        found[term] = float(time[1]) / (1000 if time[2] == "ms" else 1)
    if not found:
        raise ConfigError("no target was given", seen=text[:80], expected="for example ttft=1s,tpot=60ms")
    return found


def parse_targets(text: str) -> Slo:
    """Targets from "ttft=1s,tpot=60ms,e2e=10s", any of them. Raises as `parse_times`."""
    return Slo(**{f"{term}_s": time for term, time in parse_times(text).items()})


def format_targets(slo: Slo) -> str:
    """As `parse_targets` reads it; empty where nothing is asked."""
    times = [(term, getattr(slo, f"{term}_s")) for term in TARGETS]
    return ",".join(f"{term}={1e3 * time:.6g}ms" for term, time in times if time is not None)


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
