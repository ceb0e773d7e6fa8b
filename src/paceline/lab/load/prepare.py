"""From a plan to jobs: everything is rendered ahead, but for later turns, which go on from real answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.contracts.workload import PlannedRequest, RenderedPrompt
from paceline.lab.load.job import Job, fill, make_job
from paceline.lab.load.seams import Content, Plan
from paceline.lab.load.target import Target


class Preparation:
    """A plan with its content, for one target."""

    def __init__(self, target: Target, plan: Plan, content: Content) -> None:
        self.target = target
        self.plan = plan
        self.span_ns = round(plan.span_s * 1e9)
        self._content = content
        self._by_id = {request.id: request for request in plan.requests if _is_later(request)}
        self._rendered: dict[int, RenderedPrompt] = {}  # later turns, for validators

    def jobs(self) -> Iterator[Job]:
        """In the order of the plan."""
        for request in self.plan.requests:
            later = _is_later(request)
            prompt = None if later else self._content.render(request, None)
            goes_on = request.session is not None and not request.last_turn
            yield make_job(self.target, request, prompt, keep_messages=goes_on)

    def later_turn(self, job: Job, history: list[dict[str, Any]]) -> Job:
        """`job` with its content, which follows `history`."""
        request = self._by_id[job.record.id]
        prompt = self._content.render(request, history)
        self._rendered[request.id] = prompt
        fill(job, self.target, request, prompt, keep_messages=not request.last_turn)
        return job

    def turn_by_id(self, request_id: int, history: list[dict[str, Any]]) -> Job:
        """A later turn for whoever knows it by its id alone."""
        return self.later_turn(make_job(self.target, self._by_id[request_id], None), history)

    def prompt_of(self, request: PlannedRequest) -> RenderedPrompt | None:
        """As it was sent; None for a later turn that never was."""
        if _is_later(request):
            return self._rendered.get(request.id)
        return self._content.render(request, None)


def _is_later(request: PlannedRequest) -> bool:
    return request.session is not None and request.turn > 0


def share_of(index: int, total: int, parts: int) -> int:
    """`total` divided between `parts`, the first ones get one more."""
    return total // parts + (1 if index < total % parts else 0)
