"""Small plans, fixed content and targets for tests of the load generator: nothing is drawn, everything is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from paceline.contracts.artefact import TOKEN_KINDS, RequestRecord, TargetInfo
from paceline.contracts.slo import Timeline
from paceline.contracts.workload import PlannedRequest, RenderedPrompt
from paceline.lab.load import LoadOptions, LoadResult, Target, run_load

HERE = LoadOptions(num_processes=0, drain_s=20.0)  # in the test's own process


class SmallPlan(msgspec.Struct, kw_only=True):
    requests: list[PlannedRequest]
    span_s: float
    drain_s: float = 20.0


class FixedContent:
    """Prompt i is `word{i}`, in a conversation; a later turn follows the history it is given."""

    def __init__(self, prompts: dict[int, str] | None = None) -> None:
        self.prompts = prompts or {}
        self.histories: dict[int, list[dict[str, Any]]] = {}

    def render(self, request: PlannedRequest, history: list[dict[str, Any]] | None = None) -> RenderedPrompt:
        text = self.prompts.get(request.id, f"word{request.id}")
        if request.content == "token_ids":
            return RenderedPrompt(token_ids=[100 + request.id] * max(1, request.num_input_tokens))
        if history is not None:
            self.histories[request.id] = history
        return RenderedPrompt(messages=[*(history or []), {"role": "user", "content": text}])


def request(number: int, at_s: float | None = 0.0, **more: Any) -> PlannedRequest:
    return PlannedRequest(id=number, stream="s", at_s=at_s, **{"num_output_tokens": 4, **more})


def every(gap_s: float, count: int, **more: Any) -> SmallPlan:
    """`count` requests at even times."""
    return SmallPlan(requests=[request(i, i * gap_s, **more) for i in range(count)], span_s=gap_s * count)


def target_of(url: str, *, kind: str = "paceline", **more: Any) -> Target:
    """As a probe of the mock would find it."""
    info = TargetInfo(
        url=url, model="mock", kind=kind, ignore_eos=kind != "openai", chunk_usage=kind != "openai", final_usage=True
    )
    counts = {"paceline": "paceline", "vllm": "continuous", "llama.cpp": "timings"}.get(kind, "")
    return Target(info=info, chunk_counts=counts, **more)


def load(
    url: str,
    plan: SmallPlan,
    *,
    options: LoadOptions = HERE,
    content: FixedContent | None = None,
    target: Target | None = None,
    **more: Any,
) -> LoadResult:
    return run_load(target or target_of(url), plan, content or FixedContent(), options, **more)


def outcomes(result: LoadResult) -> list[str]:
    return [record.outcome.value for record in result.records]


def timeline(record: RequestRecord) -> Timeline:
    """A record by the one definition of its times; a chunk without a count is one token."""
    chunks: Sequence[tuple[float, int]] = [
        (chunk.t_ns / 1e9, max(1, chunk.num_tokens)) for chunk in record.chunks if chunk.kind in TOKEN_KINDS
    ]
    planned = record.t_plan_ns / 1e9
    return Timeline(planned=planned, arrival=record.t_send_ns / 1e9, chunks=list(chunks), outcome=record.outcome)
