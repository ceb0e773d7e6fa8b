"""Planned requests as an engine is asked for them: as long an answer as planned, under the terms of their server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from paceline.contracts.request import Prompt, Request, SamplingParams
from paceline.contracts.slo import Slo
from paceline.contracts.workload import PlannedRequest

NO_TARGETS = Slo()


class Terms(NamedTuple):
    """Under what a server takes a request in: its class of service, and what that says. Fields of
    `contracts.request.Request`; times in seconds from its arrival."""

    latency_class: str
    slo: Slo = NO_TARGETS
    priority: int = 0
    refuse_late: bool = False
    timeout_s: float | None = None
    queue_timeout_s: float | None = None


TermsOf = Callable[[PlannedRequest], Terms]
"""The terms of each planned request."""


def by_class(slos: Mapping[str, Slo]) -> TermsOf:
    """As if the plan's own classes were those of the server, with these targets; a class that is not among them has
    none."""
    made: dict[tuple[str, int | None], Terms] = {}

    def terms(planned: PlannedRequest) -> Terms:
        key = (planned.slo_class, planned.priority)
        found = made.get(key)
        if found is None:
            slo = slos.get(planned.slo_class, NO_TARGETS)
            found = made[key] = Terms(planned.slo_class, slo, planned.priority or 0)
        return found

    return terms


class Requests:
    def __init__(self, terms: TermsOf) -> None:
        self._terms = terms
        self._sampling: dict[int, SamplingParams] = {}  # by output length

    def make(
        self, planned: PlannedRequest, prompt: Prompt, now: float, num_output: int, prior: tuple[int, ...] = ()
    ) -> Request:
        """`num_output`: tokens it will be answered with. `prior`: of its output, what is there already."""
        sampling = self._sampling.get(num_output)
        if sampling is None:
            sampling = self._sampling[num_output] = SamplingParams(
                max_tokens=num_output, temperature=0.0, seed=0, ignore_eos=True
            )
        terms = self._terms(planned)
        return Request(
            request_id=planned.id,
            prompt=prompt,
            sampling=sampling,
            prior_output=prior,
            arrival=now,
            priority=terms.priority,
            tenant=planned.tenant or "default",
            latency_class=terms.latency_class,
            slo=terms.slo,
            refuse_late=terms.refuse_late and not prior,  # with a part of its output it was taken in long ago
            deadline=None if terms.timeout_s is None else now + terms.timeout_s,
            queue_deadline=None if terms.queue_timeout_s is None or prior else now + terms.queue_timeout_s,
        )
