"""Cost and energy: what a good token and a good request took. Not measured is said, never 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.contracts.artefact import GateResult, RunInfo
from paceline.contracts.metrics import RunMetrics
from paceline.lab.report.page import Block, Facts, Section, Table, Words
from paceline.lab.report.provenance import flat
from paceline.lab.report.words import interval_of, number, value_of


def cost_section(info: RunInfo, metrics: RunMetrics, gates: Sequence[GateResult]) -> Section:
    blocks: list[Block] = []
    told = [gate for gate in gates if gate.gate in ("cost", "energy") and gate.estimate is not None]
    blocks += [_gate_facts(gate) for gate in told]
    if info.energy.get("joules") is not None:
        blocks.append(Facts(_energy(info.energy, metrics), "Energy in the window"))
        devices = info.energy.get("devices")
        if isinstance(devices, dict) and devices:
            blocks.append(
                Table(("device", "joules"), tuple((str(name), number(_float(j))) for name, j in devices.items()))
            )
    else:
        reason = (
            info.energy.get("reason") or "no energy counter could be read on this machine, and no command was named"
        )
        blocks.append(Words(f"Energy: not measured; {reason}.", "missing"))
    if not any(gate.gate == "cost" for gate in told):
        words = "Cost: not measured; a price in the spec gives the cost per million good tokens."
        blocks.append(Words(words, "missing"))
    return Section("cost", "Cost and energy", tuple(blocks))


def _energy(energy: dict[str, Any], metrics: RunMetrics) -> tuple[tuple[str, str], ...]:
    joules = float(energy["joules"])
    seconds = metrics.window.seconds
    items = [("joules", f"{number(joules)} J")]
    if seconds > 0:
        items.append(("mean power", f"{number(joules / seconds)} W"))
        good = metrics.whole.good_tokens_per_s.value
        if good:
            items.append(("per good token", f"{number(joules / (good * seconds))} J"))
        requests = metrics.whole.goodput_rps.value
        if requests:
            items.append(("per good request", f"{number(joules / (requests * seconds))} J"))
    rest = {key: value for key, value in energy.items() if key not in ("joules", "devices", "watts", "window_s")}
    return (*items, *flat(rest))


def _gate_facts(gate: GateResult) -> Facts:
    items = [("answer", gate.answer.value), ("in words", gate.sentence)]
    if gate.estimate is not None:
        items.append(("value", f"{value_of(gate.estimate)} {interval_of(gate.estimate)}".strip()))
    return Facts((*items, *flat(gate.evidence)), gate.gate.capitalize())


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
