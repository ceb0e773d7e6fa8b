"""A configuration, and the same simulated: what the lint predicts of the one and finds in the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.assemble.lint import ALONE, Beside, Serving, lint_config, lint_folder
from paceline.assemble.sim import Simulated, simulate, simulated_engine, with_drafts
from paceline.config import load_config
from paceline.contracts.lint import Finding, LintResult
from paceline.contracts.metrics import RunMetrics
from paceline.lab.artefact import write_run
from paceline.lab.metrics import compute
from paceline.lab.workload import load_spec


def one(result: LintResult, code: str) -> Finding | None:
    """The finding of a rule, which must have been judged."""
    assert code in result.judged, result.skipped.get(code)
    return next((finding for finding in result.findings if finding.code == code), None)


def numbers(finding: Finding) -> dict[str, Any]:
    return {each.name: each.value for each in finding.evidence}


@dataclass
class Case:
    """One engine's settings on a card, with what is around it and a workload as its users write it."""

    folder: Path
    settings: dict[str, Any]
    workload: dict[str, Any]
    card: str = "h100-sxm"
    serving: Serving = ALONE
    start_budget_s: float | None = None

    def predicted(self, code: str) -> Finding | None:
        file = self.folder / "workload.toml"
        file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in self.workload.items()))
        beside = Beside(device=self.card, workload=str(file), serving=self.serving, start_budget_s=self.start_budget_s)
        return one(lint_config(None, self.settings, beside), code)

    def simulated(self, **options: Any) -> Simulated:
        serving = self.serving
        engine = simulated_engine(load_config(None, self.settings), card=self.card, degrees=serving.degrees)
        if serving.acceptance:
            engine = with_drafts(engine, serving.acceptance)
        return simulate(
            engine, load_spec(self.workload), num_replicas=serving.num_replicas, router=serving.router,
            **options,
        )  # fmt: skip

    def measured(self, code: str, name: str = "run", against: Path | None = None, **options: Any) -> Measured:
        run = self.simulated(**options)
        folder = self.folder / name
        write_run(folder, run.info, run.records, plan=run.plan)
        (result,) = lint_folder(folder, Beside(against=against, start_budget_s=self.start_budget_s))
        return Measured(one(result, code), compute(run.info, run.records), folder)


@dataclass
class Measured:
    finding: Finding | None
    metrics: RunMetrics
    folder: Path

    @property
    def seconds(self) -> float:
        """Until a load of so many requests was through."""
        return self.metrics.window.seconds

    def p50(self, name: str) -> float:
        return self._percentile(name, "p50")

    def p95(self, name: str) -> float:
        return self._percentile(name, "p95")

    def _percentile(self, name: str, at: str) -> float:
        value = getattr(self.metrics.whole.latency[name], at).value
        assert isinstance(value, float)
        return value


def toml(value: Any) -> str:
    """A value as TOML has it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
