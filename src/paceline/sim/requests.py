"""Planned requests as an engine is asked for them: as long an answer as planned, and the targets of their class."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.contracts.request import Prompt, Request, SamplingParams
from paceline.contracts.slo import Slo
from paceline.contracts.workload import PlannedRequest

NO_TARGETS = Slo()


class Requests:
    """`slos`: targets by class of the plan, what a server's class table would say."""

    def __init__(self, slos: Mapping[str, Slo]) -> None:
        self._slos = slos
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
        return Request(
            request_id=planned.id,
            prompt=prompt,
            sampling=sampling,
            prior_output=prior,
            arrival=now,
            priority=planned.priority or 0,
            tenant=planned.tenant or "default",
            latency_class=planned.slo_class,
            slo=self._slos.get(planned.slo_class, NO_TARGETS),
        )
