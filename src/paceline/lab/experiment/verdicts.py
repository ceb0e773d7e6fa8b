"""Gates on an edge: the child is the candidate, its parent the base. See `paceline.lab.gates`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.lab.artefact import StoredRun
from paceline.lab.experiment.quality import compare_nodes
from paceline.lab.experiment.results import EdgeResult, NodeResult
from paceline.lab.experiment.spec import Loaded
from paceline.lab.gates import Evidence, Start, evaluate, load_gate_spec


def gate_edge(
    folder: Path,
    edge: EdgeResult,
    loaded: Loaded,
    parent: NodeResult,
    child: NodeResult,
    base_runs: Sequence[StoredRun],
    runs: Sequence[StoredRun],
) -> EdgeResult:
    """The edge with its verdict. Without a [gates] table nothing is asked."""
    if loaded.spec.gates is None:
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
    return msgspec.structs.replace(edge, verdict=evaluate(evidence, load_gate_spec(loaded.spec.gates)))
