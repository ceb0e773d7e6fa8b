"""Prefill and decode in replicas of their own, against both in each: which carries more within the targets.

With R_p requests per second that one prefill replica sustains within the TTFT target and R_d that one decode replica
sustains within TPOT, the best of all divisions of n replicas carries

    max over k of min(k R_p, (n - k) R_d)

A prompt's KV crosses the link between them once, inside TTFT. Not covered: both kinds with different layouts.
"""

from __future__ import annotations

import msgspec

from paceline.contracts.workload import SloClass
from paceline.cost.transfer import Link
from paceline.planner.steady import Replica
from paceline.planner.step import LayoutSteps
from paceline.planner.traffic import Traffic


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The best division of replicas. Rates are requests per second."""

    prefill_replicas: int
    decode_replicas: int
    prefill_rps: float  # of one prefill replica
    decode_rps: float  # of one decode replica
    rate_rps: float  # of all
    transfer_ms: float  # of a mean prompt's KV


def best_split(
    steps: LayoutSteps,
    traffic: Traffic,
    slo: SloClass,
    *,
    replicas: int,
    seats: int,
    chunk: int,
    kv_bytes_per_prompt: float,
    link: Link,
) -> Split | None:
    """None: fewer than two replicas, or one of the two kinds cannot meet its target at all."""
    if replicas < 2:
        return None
    transfer = link.ms(kv_bytes_per_prompt)
    prefill = _prefill_rate(steps, traffic, slo, chunk, transfer)
    decode = _decode_rate(steps, traffic, slo, seats)
    if not prefill or not decode:
        return None
    most, k = max((min(k * prefill, (replicas - k) * decode), k) for k in range(1, replicas))
    return Split(
        prefill_replicas=k,
        decode_replicas=replicas - k,
        prefill_rps=prefill,
        decode_rps=decode,
        rate_rps=most,
        transfer_ms=transfer,
    )


def _prefill_rate(steps: LayoutSteps, traffic: Traffic, slo: SloClass, chunk: int, transfer_ms: float) -> float:
    """What a replica of prompts alone sustains: its requests make one token and leave."""
    alone = Traffic(
        input_tokens=traffic.input_tokens,
        output_tokens=traffic.output_tokens[:1] * 0 + 1,
        cached_share=traffic.cached_share,
        arrival_cv=traffic.arrival_cv,
    )
    target = None if slo.ttft_s is None else slo.ttft_s - transfer_ms / 1e3
    if target is not None and target <= 0:
        return 0.0
    only = msgspec.structs.replace(slo, ttft_s=target, tpot_s=None)
    found = Replica(steps, alone, only, seats=MOST_PROMPTS, chunk=chunk).capacity()
    return 0.0 if found is None else found.rate_rps


def _decode_rate(steps: LayoutSteps, traffic: Traffic, slo: SloClass, seats: int) -> float:
    """What a replica sustains whose prompts arrive computed."""
    computed = Traffic(
        input_tokens=traffic.input_tokens,
        output_tokens=traffic.output_tokens,
        cached_share=ALL_BUT_NOTHING,
        arrival_cv=traffic.arrival_cv,
    )
    only = msgspec.structs.replace(slo, ttft_s=None)
    found = Replica(steps, computed, only, seats=seats, chunk=1).capacity()
    return 0.0 if found is None else found.rate_rps


MOST_PROMPTS = 64  # that wait at a prefill replica
ALL_BUT_NOTHING = 1 - 1e-9  # of a prompt is there already
