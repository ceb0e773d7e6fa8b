"""What a run leaves on disk: written so that a crash leaves a valid part, read with checks, recomputed to the byte.

    write_run, read_run, recompute   the folder of one run
    compare_runs                     an A/B verdict between two of them
    canonical                        the one way to write a value as JSON

May import contracts, lab.metrics and lab.stats; never speaks to a server.
"""

from __future__ import annotations

from paceline.lab.artefact.compare import compare_runs
from paceline.lab.artefact.comparison import Comparison, Difference, Line
from paceline.lab.artefact.encode import canonical
from paceline.lab.artefact.plans import plan_digest
from paceline.lab.artefact.store import (
    StoredRun,
    is_intact,
    read_plan,
    read_run,
    recompute,
    write_run,
    write_verdict,
)

__all__ = [
    "Comparison",
    "Difference",
    "Line",
    "StoredRun",
    "canonical",
    "compare_runs",
    "is_intact",
    "plan_digest",
    "read_plan",
    "read_run",
    "recompute",
    "write_run",
    "write_verdict",
]
