"""Means over values that come in clusters (positions of a text, tokens of a window), with whole clusters resampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.lab.stats.bootstrap import mean_estimate, percentile_interval, resampled


def mean_of_clusters(clusters: Sequence[Sequence[float]], *, unit: str = "", seed: int = 0) -> Estimate:
    """Mean over all values. The interval draws clusters; a single cluster is taken as a series, in blocks.

    `clusters`: non-empty, each non-empty.
    """
    if len(clusters) == 1:
        return mean_estimate(clusters[0], unit=unit, seed=seed)
    sums = np.array([sum(values) for values in clusters], dtype=np.float64)
    sizes = np.array([len(values) for values in clusters], dtype=np.float64)
    draws = resampled(lambda index: sums[index].sum(axis=1) / sizes[index].sum(axis=1), len(clusters), seed=seed)
    low, high = percentile_interval(draws)
    return Estimate(
        value=float(sums.sum() / sizes.sum()),
        lo=low,
        hi=high,
        n=int(sizes.sum()),
        n_eff=float(len(clusters)),
        method=f"bootstrap 95 % over {len(clusters)} clusters",
        unit=unit,
    )
