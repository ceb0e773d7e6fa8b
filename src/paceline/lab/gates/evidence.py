"""What gates decide on: runs, comparisons, a soak, a probe, starts. Everything was measured before; nothing is here
that a gate could ask a server for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from paceline.contracts.artefact import Answer, Caution, Estimate, GateResult, RequestRecord, RunInfo
from paceline.contracts.metrics import RunMetrics
from paceline.lab.gates.probe_result import ProbeResult
from paceline.lab.gates.soak_result import SoakResult
from paceline.lab.quality import Comparison, SetComparison, SetScore


class Run(Protocol):
    """A stored run, as `lab.artefact` reads it."""

    @property
    def info(self) -> RunInfo: ...
    @property
    def records(self) -> Sequence[RequestRecord]: ...
    @property
    def metrics(self) -> RunMetrics: ...


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a server, to its first token."""

    kind: str  # cold: nothing cached; warm
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Of one candidate. `base` pairs with `runs`, in order: same plan, same seed."""

    runs: Sequence[Run] = ()  # repeats at the target rate
    base: Sequence[Run] = ()
    overload: Sequence[Run] = ()  # at 1.2 times the target rate
    comparisons: Sequence[SetComparison] = ()
    scores: Sequence[SetScore] = ()  # of the candidate: absolute limits on refusals
    divergence: Comparison | None = None
    perplexity_ratio: Estimate | None = None
    soak: SoakResult | None = None
    probe: ProbeResult | None = None
    starts: Sequence[Start] = ()
    notes: dict[str, str] = field(default_factory=dict)  # gate -> why there is nothing


def invalid(gate: str, runs: Sequence[Run], subject: str = "") -> GateResult | None:
    """The answer where a run's numbers say nothing about the server; None where they all do."""
    broken: list[Caution] = [c for run in runs for c in run.metrics.cautions if c.invalidates]
    if not broken:
        return None
    first = broken[0]
    return GateResult(
        gate=gate,
        answer=Answer.INVALID,
        subject=subject,
        sentence=f"the run says nothing about the server: {first.sentence}",
        evidence={"cautions": sorted({c.code for c in broken})},
    )


def not_measured(gate: str, why: str, subject: str = "") -> GateResult:
    return GateResult(gate=gate, answer=Answer.NOT_MEASURED, subject=subject, sentence=f"not measured: {why}")
