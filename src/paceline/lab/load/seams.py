"""What the load generator needs of others: a plan to carry out, content to render, answers to be judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.contracts.workload import PlannedRequest, RenderedPrompt

Validate = Callable[[PlannedRequest, RenderedPrompt, str, list[dict[str, Any]], str], dict[str, bool]]
"""(request, its prompt, answer's text, tool calls as {name, arguments, id, index}, finish_reason) -> validator's name
-> passed. `lab.quality.validate` is one."""


class Plan(Protocol):
    """`lab.workload.Plan` is one."""

    @property
    def requests(self) -> Sequence[PlannedRequest]: ...

    @property
    def span_s(self) -> float:
        """No request is begun later than this after the start; 0: there is no such limit."""
        ...

    @property
    def drain_s(self) -> float: ...


class Content(Protocol):
    """`lab.workload.Content` is one, prepared."""

    def render(self, request: PlannedRequest, history: list[dict[str, Any]] | None) -> RenderedPrompt:
        """`history`: the conversation up to here, for a later turn of a session; the prompt holds it too."""
        ...
