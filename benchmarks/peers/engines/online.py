"""W5: requests that arrive, and the share that is good: first token within 1 s, 50 ms a token after it, all tokens.

The client is this project's load generator, the same for every server: an absolute schedule, times from the planned
moment. An engine without a server carries the same schedule out within its own process, which spares it HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.engines.columns import Column
from benchmarks.peers.engines.engine import Engine
from benchmarks.peers.engines.workloads import Arrival

from paceline.contracts.artefact import RequestRecord
from paceline.contracts.slo import Outcome, Timeline, percentile
from paceline.contracts.workload import Endpoint, PlannedRequest, RenderedPrompt, SloClass
from paceline.errors import LabError
from paceline.lab.experiment.process import OwnedServer
from paceline.lab.load import LoadOptions, Progress, probe, run_load
from paceline.lab.metrics.columns import columns_of
from paceline.lab.metrics.judge import judge, times_of
from paceline.lab.stats.proportion import clopper_pearson

SHARE = 0.9  # a rate holds when so many are good
TARGETS_S = (1.0, 0.05)  # TTFT, TPOT
SLO = SloClass(ttft_s=TARGETS_S[0], tpot_s=TARGETS_S[1], share=SHARE)
DRAIN_S = 16.0  # after the last arrival: a good request has 1 s and 256 tokens of 50 ms, and none is good later
CONFIDENCE = 0.9  # two-sided: its lower end is the 95 % bound


@dataclass(frozen=True)
class Plan:
    requests: tuple[PlannedRequest, ...]
    span_s: float
    drain_s: float = DRAIN_S


class Content:
    def __init__(self, schedule: Sequence[Arrival]) -> None:
        self._schedule = schedule

    def render(self, request: PlannedRequest, history: list[dict[str, Any]] | None) -> RenderedPrompt:
        ids = self._schedule[request.id].ids
        return RenderedPrompt(token_ids=ids, num_tokens=len(ids))


def plan_of(schedule: Sequence[Arrival]) -> Plan:
    requests = tuple(
        PlannedRequest(
            id=i,
            stream="W5",
            at_s=arrival.at_s,
            endpoint=Endpoint.TOKEN_IDS,
            num_input_tokens=len(arrival.ids),
            num_output_tokens=arrival.num_out,
        )
        for i, arrival in enumerate(schedule)
    )
    return Plan(requests, span_s=schedule[-1].at_s + 1e-3)


@dataclass(frozen=True)
class Seen:
    """What became of one request. Times are nan where there is none."""

    ttft_s: float
    tpot_s: float
    ended: bool  # well, with all its tokens
    good: bool


def most_late(num_requests: int) -> int:
    """So many may be late where a rate holds."""
    return int((1 - SHARE) * num_requests + 1e-6)


def hopeless(progress: Progress, num_requests: int) -> bool:
    """Whether more than a tenth of all requests are late already. A median beyond its target says so of half of those
    that have ended, at least."""
    over = [progress.ttft_p50_s, progress.tpot_p50_s]
    late = any(value is not None and value > most for value, most in zip(over, TARGETS_S, strict=True))
    return late and (progress.num_done - progress.num_failed) / 2 > most_late(num_requests)


def through_server(column: Column, schedule: Sequence[Arrival], log: Path) -> list[Seen]:
    """What became of the requests, fewer than planned where it was stopped because the rate cannot hold any more.
    Raises LabError where the server does not serve."""
    assert column.server is not None
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        if hopeless(progress, len(schedule)):
            stop.set()

    with OwnedServer(column.server, log) as server:
        server.wait_ready()
        target = asyncio.run(probe(server.url))
        if not target.info.token_ids:
            raise LabError("the server takes no token ids", seen=target.info.kind, expected="the same ids for all")
        options = LoadOptions(drain_s=DRAIN_S)
        result = run_load(target, plan_of(schedule), Content(schedule), options, on_progress=watch, stop=stop)
    if result.partial and not stop.is_set():
        raise LabError("the load was cut off", seen="; ".join(result.problems) or "an interruption")
    return seen_in(
        [record for record in result.records if not result.partial or record.outcome is not Outcome.NOT_SENT], schedule
    )


def seen_in(records: Sequence[RequestRecord], schedule: Sequence[Arrival]) -> list[Seen]:
    columns = columns_of(records)
    times = times_of(columns)
    good = judge(columns, times, {"default": SLO}).good
    ended = columns.ok & (columns.tokens >= np.asarray([schedule[record.id].num_out for record in columns.records]))
    rows = zip(times.ttft, times.tpot, ended, good & ended, strict=True)
    return [Seen(float(ttft), float(tpot), bool(whole), bool(well)) for ttft, tpot, whole, well in rows]


def within(engine: Engine, schedule: Sequence[Arrival]) -> list[Seen]:
    """The same, carried out by the engine's worker."""
    with engine.turn():
        limit_s, most = schedule[-1].at_s + DRAIN_S, most_late(len(schedule))
        times = engine.online(list(schedule), limit_s, late_s=TARGETS_S[0], most_late=most)
    return [judged(arrival, seen) for arrival, seen in zip(schedule, times, strict=False)]


def judged(arrival: Arrival, seen: Mapping[str, Any] | None) -> Seen:
    """`seen`: first_s and last_s on the schedule's clock, num_tokens; None where it never began."""
    line = Timeline(planned=arrival.at_s, arrival=arrival.at_s)
    if seen is not None and seen["first_s"] is not None:
        line.chunks = [(seen["first_s"], 1), (seen["last_s"], seen["num_tokens"] - 1)][: seen["num_tokens"]]
    ended = line.num_tokens >= arrival.num_out
    return Seen(line.ttft_s, line.tpot_s, ended, ended and line.is_good(SLO.slo))


def summary(requests: Sequence[Seen], num_planned: int) -> dict[str, Any]:
    """Counts, the share of good ones with its lower 95 % bound, and percentiles; an unknown time is the worst."""
    num_good = sum(seen.good for seen in requests)
    low, _ = clopper_pearson(num_good, len(requests), CONFIDENCE)
    ttft, tpot = [seen.ttft_s for seen in requests], [seen.tpot_s * 1e3 for seen in requests]
    return {
        "num_requests": len(requests),
        "num_planned": num_planned,  # more than there are: stopped, for the rate could not hold any more
        "num_ended": sum(seen.ended for seen in requests),
        "num_good": num_good,
        "share": num_good / len(requests),
        "share_low": low,
        "ttft_s": [percentile(ttft, q) for q in (0.5, 0.95)],
        "tpot_ms": [percentile(tpot, q) for q in (0.5, 0.95)],
    }


def next_rate(rates: Sequence[float], start: float, held: Mapping[float, bool]) -> float | None:
    """The rate to offer next, None when the answer is known: `start` first, then up while rates hold, or down until
    one does. `rates` ascend; `held` says of those that were offered whether they held."""
    place = min(range(len(rates)), key=lambda i: abs(rates[i] - start))
    if rates[place] not in held:
        return rates[place]
    direction = 1 if held[rates[place]] else -1
    while 0 <= place < len(rates):
        rate = rates[place]
        if rate not in held:
            return rate
        if held[rate] != (direction == 1):
            return None
        place += direction
    return None


def best_rate(held: Mapping[float, bool]) -> float | None:
    """The highest rate that held."""
    return max((rate for rate, holds in held.items() if holds), default=None)
