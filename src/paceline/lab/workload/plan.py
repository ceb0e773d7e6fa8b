"""A spec and a seed become the requests of a run, in order. Pure: the same spec and seed give the same plan.

Request i of a stream has the same lengths, prefix group, faults and text at any rate and duration: each draw is a
function of (seed, stream, purpose, i). So arms of an experiment pair by id, and a faster run asks the same questions.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from paceline.contracts.workload import PlannedRequest
from paceline.errors import ConfigError
from paceline.lab.workload.arrivals import Closed
from paceline.lab.workload.requests import StreamRequests
from paceline.lab.workload.spec import Stream, WorkloadSpec
from paceline.lab.workload.traces.replay import Trace

_MAX_REQUESTS = 5_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one run by id, and what is known of them before anything is sent."""

    requests: tuple[PlannedRequest, ...]
    span_s: float  # of the schedule, warm-up included; a closed loop starts nothing after it. 0: no limit of time
    warmup_s: float = 0.0
    drain_s: float = 30.0
    closed_loop: bool = False  # some stream has no schedule
    seed: int = 0
    salt: str = ""
    num_cut: int = 0  # requests shortened, and turns left out, to fit max_model_len

    @property
    def offered_rps(self) -> float:
        """Planned requests per second of span, later turns of sessions included; 0 where there is no span."""
        return len(self.requests) / self.span_s if self.span_s else 0.0


def make_plan(spec: WorkloadSpec, *, seed: int | None = None, salt: str = "") -> Plan:
    """The plan of a checked spec (see `load_spec`). `seed` None takes the spec's; `salt` is only noted here.

    Raises ConfigError where a trace is too short or cannot be read, or there would be no request.
    """
    seed = spec.seed if seed is None else seed
    wanted = max(spec.num_requests or 0, *(getattr(s.arrival, "requests", None) or 0 for s in spec.streams))
    if wanted > _MAX_REQUESTS:
        raise ConfigError("the plan is too big", seen=f"{wanted} requests", expected=f"{_MAX_REQUESTS} at most")
    closed = [s for s in spec.streams if isinstance(s.arrival, Closed)]
    opened = [s for s in spec.streams if not isinstance(s.arrival, Closed)]
    entries: list[_Entry] = []
    num_cut = 0
    span_s = spec.span_s or 0.0
    if opened:
        span_s, schedules = _schedules(spec, opened, seed)
        for place, (stream, times, rows) in enumerate(schedules):
            made = StreamRequests(stream, spec, seed, rows)
            for index, at_s in enumerate(times):
                requests, cut = made.arrival(index)
                num_cut += cut
                entries += [(float(at_s), place, index, r) for r in requests]
    for place, stream in enumerate(closed, start=len(opened)):
        assert isinstance(stream.arrival, Closed)
        made = StreamRequests(stream, spec, seed, None)
        wanted, index, taken = stream.arrival.requests or spec.num_requests or 0, 0, 0
        while taken < wanted:
            requests, cut = made.arrival(index)
            num_cut += cut
            entries += [(-1.0, place, index, r) for r in requests[: wanted - taken]]
            taken, index = taken + len(requests), index + 1
    entries.sort(key=lambda e: (e[0], e[1], e[2]))
    if spec.num_requests is not None and len(entries) > spec.num_requests:
        if spec.duration_s is None and opened:
            last_s = entries[spec.num_requests - 1][0]
            span_s = min([at_s for at_s, *_ in entries[spec.num_requests :] if at_s > last_s], default=span_s)
        entries = entries[: spec.num_requests]
    if not entries:
        raise ConfigError(
            "the plan has no request", seen=f"{span_s:g} s of {spec.name}", fix="raise the rate or duration_s"
        )
    return Plan(
        requests=tuple(_numbered(entries)),
        span_s=span_s,
        warmup_s=spec.warmup_s,
        drain_s=spec.drain_s,
        closed_loop=bool(closed),
        seed=seed,
        salt=salt,
        num_cut=num_cut,
    )


def offered_rps(spec: WorkloadSpec) -> float:
    """Expected requests per second of the open streams, later turns included. 0 for closed loops alone."""
    span_s = spec.span_s or 60.0
    return sum(s.arrival.mean_rps(span_s) * mean_turns(s) for s in spec.streams)


def scale(spec: WorkloadSpec, *, rate: float | None = None, duration_s: float | None = None) -> WorkloadSpec:
    """The same load at `rate` requests/s in all, and for another time. Shares between streams stay.

    Raises ConfigError for a load with closed loops, whose rate follows from the server.
    """
    if duration_s is not None:
        streams = tuple(_with_end(stream, spec.num_requests) for stream in spec.streams)
        spec = msgspec.structs.replace(spec, streams=streams, duration_s=duration_s, num_requests=None)
    if rate is None:
        return spec
    now = offered_rps(spec)
    if not rate > 0 or (now <= 0 and not any(isinstance(s.arrival, Closed) for s in spec.streams)):
        raise ConfigError("a rate must be above 0", seen=rate)
    factor = rate / now if now > 0 else 1.0
    changes: list[Any] = [s.arrival.scaled(factor) for s in spec.streams]
    pairs = zip(spec.streams, changes, strict=True)
    return msgspec.structs.replace(spec, streams=tuple(msgspec.structs.replace(s, arrival=a) for s, a in pairs))


def _with_end(stream: Stream, num_requests: int | None) -> Stream:
    """A closed loop that took its number of requests from the spec keeps it."""
    arrival = stream.arrival
    if not isinstance(arrival, Closed) or arrival.requests is not None:
        return stream
    return msgspec.structs.replace(stream, arrival=msgspec.structs.replace(arrival, requests=num_requests))


def mean_turns(stream: Stream) -> float:
    """Expected requests per arrival."""
    turns = stream.turns
    if turns is None:
        return 1.0
    if turns.mean is None:
        return float(turns.max)
    going_on = 1 - 1 / turns.mean
    return sum(going_on**k for k in range(turns.max))


_Entry = tuple[float, int, int, PlannedRequest]
_Schedule = tuple[Stream, Any, Any]


def _schedules(spec: WorkloadSpec, streams: list[Stream], seed: int) -> tuple[float, list[_Schedule]]:
    """(span, streams with arrival times and, for traces, rows). Without a duration, the span grows until the asked
    number of requests has come, and ends where the next would have."""
    if spec.span_s is not None:
        if offered_rps(spec) * spec.span_s > _MAX_REQUESTS:
            raise ConfigError("the plan is too big", seen=f"{offered_rps(spec):g} requests/s for {spec.span_s:g} s")
        return spec.span_s, [_schedule(stream, spec.span_s, seed) for stream in streams]
    assert spec.num_requests is not None
    span_s = spec.num_requests / max(1e-9, offered_rps(spec))
    for _ in range(60):
        made = [_schedule(stream, span_s, seed) for stream in streams]
        counts = [_num_requests(stream, len(times)) for stream, times, _ in made]
        if sum(counts) >= spec.num_requests:
            return span_s, made
        span_s *= 1.1
    raise ConfigError("the arrivals do not reach the number of requests", seen=spec.num_requests)


def _schedule(stream: Stream, span_s: float, seed: int) -> _Schedule:
    names = (seed, "arrival", stream.name)
    if isinstance(stream.arrival, Trace):
        rows = stream.arrival.rows(span_s, *names)
        return stream, rows.at_s, rows
    return stream, stream.arrival.times(span_s, *names), None


def _num_requests(stream: Stream, num_arrivals: int) -> int:
    if stream.turns is None:
        return num_arrivals
    return math.floor(num_arrivals * mean_turns(stream)) if num_arrivals else 0


def _numbered(entries: list[_Entry]) -> list[PlannedRequest]:
    sessions: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for place, (_, stream, index, request) in enumerate(entries):
        if request.session is not None:
            sessions.setdefault((stream, index), len(sessions))
            last[(stream, index)] = place
    made = []
    for place, (at_s, stream, index, request) in enumerate(entries):
        known = request.session is not None
        made.append(
            msgspec.structs.replace(
                request,
                id=place,
                at_s=at_s if at_s >= 0 and request.turn == 0 else None,
                session=sessions[(stream, index)] if known else None,
                last_turn=last[(stream, index)] == place if known else True,
            )
        )
    return made


__all__ = ["Plan", "make_plan", "mean_turns", "offered_rps", "scale"]
