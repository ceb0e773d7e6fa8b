"""The load's side of a simulation: which request comes when, as the lab's load generator would send it.

Scheduled requests come at their times. Later turns of a session follow the end of the turn before; a closed loop keeps
its slots busy as long as the span lasts. What a client sends arrives at once; `lag_s` is what an answer needs outside
the engine before its client goes on. A slot whose request was refused waits `REFUSAL_S`, or a full queue would eat the
whole plan in one instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from paceline.contracts.slo import Outcome
from paceline.contracts.workload import PlannedRequest
from paceline.lab.workload import Plan

GOES_ON = frozenset({Outcome.OK, Outcome.TRUNCATED, Outcome.CLIENT_CANCEL})  # a session does after such a turn
REFUSED = frozenset({Outcome.REJECTED, Outcome.HTTP_ERROR})
REFUSAL_S = 0.001  # until a slot is free again: a short round trip, assumed


class Client:
    """One plan being carried out. `due` requests are to be sent at a time; `lost` ones never are."""

    def __init__(self, plan: Plan, *, lag_s: float = 0.0) -> None:
        self._lag_s = lag_s
        self._span_s = plan.span_s if plan.span_s > 0 else float("inf")
        self.drain_s = plan.drain_s
        self.scheduled: list[PlannedRequest] = []  # in the order of their times
        self._later: dict[int, deque[PlannedRequest]] = {}  # session -> turns still to come
        self._loops: dict[str, deque[PlannedRequest]] = {}  # stream -> requests still to come
        self._idle: dict[str, int] = {}  # stream -> free slots
        for request in plan.requests:
            if request.session is not None and request.turn > 0:
                self._later.setdefault(request.session, deque()).append(request)
            elif request.at_s is not None:
                self.scheduled.append(request)
            else:
                self._loops.setdefault(request.stream, deque()).append(request)
                self._idle.setdefault(request.stream, request.loop_slots or 1)
        self.scheduled.sort(key=lambda r: (r.at_s, r.id))

    @property
    def end_s(self) -> float:
        """When what is still open is cut off."""
        return self._span_s + self.drain_s

    def begin(self) -> Iterator[PlannedRequest]:
        """What closed loops send at time 0."""
        for stream in self._loops:
            yield from self._fill(stream, 0.0)

    def ended(self, request: PlannedRequest, time: float, outcome: Outcome) -> Iterable[tuple[float, PlannedRequest]]:
        """A request has ended: (time, request) of what is due because of it."""
        if request.session is None and request.loop_slots is None:
            return ()
        return self._due(request, time + self._lag_s, outcome)

    def _due(self, request: PlannedRequest, time: float, outcome: Outcome) -> Iterator[tuple[float, PlannedRequest]]:
        turns = self._later.get(request.session) if request.session is not None else None
        if turns:
            following = turns[0]
            at_s = time + following.think_s
            if outcome in GOES_ON and at_s <= self._span_s:
                yield at_s, turns.popleft()
                return
            if at_s > self._span_s or outcome is Outcome.DISCONNECT:
                turns.clear()  # they were never due
        if request.loop_slots is not None:
            self._idle[request.stream] += 1
            at_s = time + REFUSAL_S if outcome in REFUSED else time
            for each in self._fill(request.stream, at_s):
                yield at_s, each

    def lost(self, request: PlannedRequest) -> list[PlannedRequest]:
        """Turns that will never be sent, because this one of their session ended badly."""
        turns = self._later.pop(request.session, None) if request.session is not None else None
        return list(turns or ())

    def _fill(self, stream: str, time: float) -> Iterator[PlannedRequest]:
        waiting = self._loops[stream]
        while waiting and self._idle[stream] and time < self._span_s:
            self._idle[stream] -= 1
            yield waiting.popleft()
