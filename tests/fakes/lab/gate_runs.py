"""Small runs of scripted requests, for gates: every time is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.contracts.artefact import (
    Caution,
    Chunk,
    ChunkKind,
    Estimate,
    RequestRecord,
    RunInfo,
    TargetInfo,
    TokenSource,
    Window,
)
from paceline.contracts.metrics import GroupMetrics, RunMetrics
from paceline.contracts.slo import Outcome
from paceline.contracts.workload import SloClass

SECOND = 1_000_000_000
CHAT = SloClass(name="chat", ttft_s=1.0, tpot_s=0.1, share=0.9)


@dataclass
class ScriptedRun:
    info: RunInfo
    records: list[RequestRecord]
    metrics: RunMetrics


def answered(
    index: int,
    *,
    ttft_s: float,
    tpot_s: float = 0.05,
    num_tokens: int = 5,
    slo_class: str = "chat",
    every_s: float = 0.1,
) -> RequestRecord:
    """One request that ended well; one token a chunk."""
    plan = round(index * every_s * SECOND)
    times = [plan + round((ttft_s + i * tpot_s) * SECOND) for i in range(num_tokens)]
    return RequestRecord(
        id=index,
        stream="s",
        slo_class=slo_class,
        t_plan_ns=plan,
        t_send_ns=plan,
        t_headers_ns=plan,
        t_close_ns=times[-1],
        chunks=[Chunk(t, ChunkKind.CONTENT, 1, 4) for t in times],
        outcome=Outcome.OK,
        completion_tokens=num_tokens,
        token_source=TokenSource.CHUNK_USAGE,
    )


def failed(
    index: int,
    outcome: Outcome = Outcome.HTTP_ERROR,
    *,
    slo_class: str = "chat",
    every_s: float = 0.1,
    after_s: float = 0.2,
) -> RequestRecord:
    plan = round(index * every_s * SECOND)
    close = plan + round(after_s * SECOND)
    return RequestRecord(
        id=index, stream="s", slo_class=slo_class, t_plan_ns=plan, t_send_ns=plan, t_close_ns=close, outcome=outcome
    )


def run_of(
    records: Sequence[RequestRecord],
    *,
    slo: Sequence[SloClass] = (CHAT,),
    seconds: float = 1000.0,
    cautions: Sequence[Caution] = (),
    good_tokens_per_s: Estimate | None = None,
    goodput_rps: Estimate | None = None,
    attainment: Estimate | None = None,
    energy: dict[str, object] | None = None,
) -> ScriptedRun:
    """The metrics hold only what is given: gates compute the rest from the records."""
    window = Window(start_ns=0, end_ns=round(seconds * SECOND))
    given = {
        "goodput_rps": goodput_rps or Estimate(),
        "good_tokens_per_s": good_tokens_per_s or Estimate(),
        "attainment": attainment or Estimate(),
    }
    groups = (
        GroupMetrics(kind="all", name="all", num_requests=len(records), **given),
        *(GroupMetrics(kind="class", name=c.name, num_requests=len(records), **given) for c in slo),
    )
    info = RunInfo(
        name="scripted",
        slo=list(slo),
        window=window,
        span_s=seconds,
        target=TargetInfo(url="http://none", model="m"),
        energy=energy or {},
    )
    return ScriptedRun(info, list(records), RunMetrics(window=window, groups=groups, cautions=tuple(cautions)))
