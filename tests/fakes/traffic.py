"""Open-loop traffic in virtual time: requests arrive when they arrive, and timelines say what they got."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.fakes.builders import Built

from paceline.contracts.request import FinishReason, Request, RequestOutput
from paceline.contracts.slo import Timeline, percentile
from paceline.errors import QueueFullError


@dataclass
class Served:
    """What came of it, by request id."""

    timelines: dict[int, Timeline]
    outputs: list[RequestOutput]
    refused: list[int]
    end: float

    def ttft(self, ids: Iterable[int] | None = None, q: float = 0.5) -> float:
        return percentile([self.timelines[i].ttft_s for i in (self.timelines if ids is None else ids)], q)

    def tpot(self, ids: Iterable[int] | None = None, q: float = 0.5) -> float:
        return percentile([self.timelines[i].tpot_s for i in (self.timelines if ids is None else ids)], q)

    def worst_gap(self, ids: Iterable[int]) -> float:
        return max(gap for i in ids for gap in self.timelines[i].itl_s())


def serve(built: Built, arrivals: Sequence[tuple[float, Request]], *, max_steps: int = 100_000) -> Served:
    """Run all arrivals (engine seconds, ascending) to their end. A full queue refuses; anything else is an error."""
    import msgspec

    served = Served({}, [], [], 0.0)
    todo = list(arrivals)[::-1]
    for _ in range(max_steps):
        now = built.clock.now()
        while todo and todo[-1][0] <= now:
            arrival, request = todo.pop()
            try:
                built.core.submit(msgspec.structs.replace(request, arrival=max(arrival, 1e-9)))
            except QueueFullError:
                served.refused.append(request.request_id)
        wait = built.core.idle_s()
        if wait is None and not todo:
            served.end = now
            return served
        until = [now + wait] if wait is not None else []
        if todo and (wait is None or wait > 0):
            until.append(todo[-1][0])
        if until and min(until) > now:
            built.clock.advance_to(min(until))
            continue
        for output in built.core.step():
            served.outputs.append(output)
            if output.finish is not None:
                assert output.finish is not FinishReason.ERROR, output.error
                assert output.timeline is not None
                served.timelines[output.request_id] = output.timeline
    raise AssertionError("no end")
