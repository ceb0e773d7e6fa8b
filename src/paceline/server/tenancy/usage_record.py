"""One sequence as it is metered: what it used, how long it took, whether it met its targets."""

from __future__ import annotations

import math

import msgspec

from paceline.contracts.request import FinishReason, Usage
from paceline.contracts.slo import Outcome, Slo, Timeline


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence (each choice of a call is one). Times that are undefined are None, never 0."""

    time: float  # Unix seconds, when it ended
    request_id: str  # as in the response
    tenant: str
    service_class: str
    model: str
    outcome: Outcome
    choice: int = 0
    finish_reason: str | None = None  # stop, length, abort, error, timeout
    # token positions; prompt counts at every choice, and choices after the first find it cached
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    wasted_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    kv_block_seconds: float = 0.0
    queue_ms: float | None = None  # arrival to first scheduled
    prefill_ms: float | None = None  # first scheduled to first token
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    reclaim_ms: float | None = None  # from the client's close to its blocks being free; only when the client left
    good: bool = False  # ended well, within every target of its class
    counts: bool = True  # in the denominator of attainment: all but those who left before a target was missed

    @property
    def ttft_s(self) -> float:
        """Seconds; nan without a first token."""
        return math.nan if self.ttft_ms is None else self.ttft_ms / 1e3

    @property
    def tpot_s(self) -> float:
        """Seconds; nan where it is undefined."""
        return math.nan if self.tpot_ms is None else self.tpot_ms / 1e3

    @classmethod
    def of(
        cls,
        *,
        time: float,
        request_id: str,
        tenant: str,
        service_class: str,
        model: str,
        slo: Slo,
        timeline: Timeline,
        usage: Usage | None = None,
        finish: FinishReason | None = None,
        choice: int = 0,
        closed_at: float | None = None,
    ) -> UsageRecord:
        """From what the engine said at the end. `timeline` holds the outcome; `closed_at` is when the client left, on
        the timeline's clock; `slo` are the targets it was served under."""
        used = Usage() if usage is None else usage
        reclaim_s = math.nan if closed_at is None else timeline.blocks_free - closed_at
        return cls(
            time=time,
            request_id=request_id,
            tenant=tenant,
            service_class=service_class,
            model=model,
            outcome=timeline.outcome,
            choice=choice,
            finish_reason=None if finish is None else finish.value,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            computed_tokens=used.computed_tokens,
            wasted_tokens=used.wasted_tokens,
            output_tokens=used.output_tokens,
            preemptions=used.preemptions,
            kv_block_seconds=used.kv_block_seconds,
            queue_ms=_ms(timeline.queue_s),
            prefill_ms=_ms(timeline.prefill_s),
            ttft_ms=_ms(timeline.ttft_s),
            tpot_ms=_ms(timeline.tpot_s),
            e2e_ms=_ms(timeline.e2e_s),
            reclaim_ms=_ms(max(0.0, reclaim_s)) if math.isfinite(reclaim_s) else None,
            good=timeline.is_good(slo),
            counts=counts_for_attainment(timeline, slo),
        )


def counts_for_attainment(timeline: Timeline, slo: Slo) -> bool:
    """False for a client that left while all its targets could still be met; a cancel after a miss counts, as bad."""
    if timeline.outcome not in (Outcome.CLIENT_CANCEL, Outcome.DISCONNECT):
        return True
    waited = timeline.end - timeline.planned
    if slo.e2e_s is not None and waited > slo.e2e_s:
        return True
    if slo.ttft_s is not None and (timeline.ttft_s if timeline.chunks else waited) > slo.ttft_s:
        return True
    return slo.tpot_s is not None and timeline.tpot_s > slo.tpot_s  # nan: no


def _ms(seconds: float) -> float | None:
    return round(1e3 * seconds, 3) if math.isfinite(seconds) else None
