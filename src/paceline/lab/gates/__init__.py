"""Gates: pass, fail, inconclusive, invalid or not measured, for each of the nine things a release is judged by.

    spec      which gates are asked for, and their limits; TOML
    evidence  what they decide on: runs, comparisons, a soak, a probe, starts
    verdict   all gates together, Holm's correction, exit codes
    latency, goodput, quality_gate, stability, cold_start, cost, safety   one rule each; pure
    soak, vitals, timing_probe   the two measurements that exist for a gate alone; the only ones here that call a server

May import `metrics`, `stats`, `artefact`, `load`, `workload` and `quality`. A gate never measures, and nothing is a
pass unless its whole interval is within the limit.
"""

from __future__ import annotations

from paceline.lab.gates.evidence import Evidence, Run, Start
from paceline.lab.gates.probe_result import ProbeResult
from paceline.lab.gates.soak_result import SoakResult, read_soak, write_soak
from paceline.lab.gates.spec import GATES, GateSpec, StabilityGate, load_gate_spec
from paceline.lab.gates.stability import stability_gate
from paceline.lab.gates.verdict import EXIT_CODES, conclude, evaluate, exit_code

__all__ = [
    "EXIT_CODES",
    "GATES",
    "Evidence",
    "GateSpec",
    "ProbeResult",
    "Run",
    "SoakResult",
    "StabilityGate",
    "Start",
    "conclude",
    "evaluate",
    "exit_code",
    "load_gate_spec",
    "read_soak",
    "stability_gate",
    "write_soak",
]
