"""Gates on an edge: the child is the candidate, its parent the base. See `paceline.lab.gates`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.lab.artefact import StoredRun
from paceline.lab.experiment.quality import CHANGES_KV, compare_nodes, quality_table
from paceline.lab.experiment.results import EdgeResult, NodeResult
from paceline.lab.experiment.spec import Loaded
from paceline.lab.gates import Evidence, GateSpec, Start, evaluate, load_gate_spec


def gate_edge(
    folder: Path,
    edge: EdgeResult,
    loaded: Loaded,
    parent: NodeResult,
    child: NodeResult,
    base_runs: Sequence[StoredRun],
    runs: Sequence[StoredRun],
) -> EdgeResult:
    """The edge with its verdict. Without a [gates] table nothing is asked, nor where its gates are of other edges."""
    if loaded.spec.gates is None:
        return edge
    asked = asked_of(edge, load_gate_spec(loaded.spec.gates), loaded)
    if not asked.asked:
        return edge
    quality = compare_nodes(folder, loaded, parent.name, child.name)
    evidence = Evidence(
        runs=runs,
        base=base_runs,
        comparisons=quality.comparisons,
        scores=quality.scores,
        divergence=quality.divergence,
        starts=[Start(kind=s.kind, seconds=s.first_token_s) for s in child.starts if s.first_token_s is not None],
        notes={"stability": "an experiment is no soak: see `paceline soak`", **quality.notes},
    )
    return msgspec.structs.replace(edge, verdict=evaluate(evidence, asked))


def asked_of(edge: EdgeResult, gates: GateSpec, loaded: Loaded) -> GateSpec:
    """Without limits of KL and top-1 where the texts of [quality] are not read: an edge that leaves the arithmetic
    alone would be inconclusive for want of a number that nobody measures."""
    table = quality_table(loaded.spec.quality)
    if gates.quality is None or table is None or table.texts is None or edge.group in CHANGES_KV:
        return gates
    left = msgspec.structs.replace(gates.quality, max_kl=None, min_top1=None) if table.sets else None
    return msgspec.structs.replace(gates, quality=left)
