"""From records to numbers: `compute` is pure, so every number can be had again from what a run left behind.

The definitions are those of `paceline.contracts.slo`; docs/reference/lab-metrics.md lists each formula with its edge
cases, and `compat` shows what other tools would have printed for the same records. May import contracts and lab.stats;
never does I/O, never asks for the time, never draws without a fixed seed.
"""

from __future__ import annotations

from paceline.lab.metrics.compat import compat
from paceline.lab.metrics.compute import compute
from paceline.lab.metrics.series import Series, series_of

__all__ = ["Series", "compat", "compute", "series_of"]
