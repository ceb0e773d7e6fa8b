"""Share of tokens that came in time for a reader who may lag behind: deadlines carry the slack of early tokens.

Token i (from 1) of a request must be there at planned time + ttft_s + (i - 1) * tpot_s of its class. A stall does not
count while the reader still has tokens in hand; a late first token makes all that follow late that do not catch up
(after etalon's fluidity index, without its restart after a miss).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.contracts.workload import SloClass
from paceline.lab.metrics.columns import Bools, Columns, Floats
from paceline.lab.stats.dependence import correlation_time
from paceline.lab.stats.proportion import wilson


def on_time(columns: Columns, classes: Mapping[str, SloClass]) -> tuple[Floats, Floats]:
    """([n] tokens in time, [n] tokens) of each request; nan where its class sets no TTFT and TPOT, or it failed, was
    not streamed or has no token count."""
    c = columns
    n = len(c)
    first = np.asarray([_limit(classes, r.slo_class, "ttft_s") for r in c.records], dtype=np.float64)
    each = np.asarray([_limit(classes, r.slo_class, "tpot_s") for r in c.records], dtype=np.float64)
    owner = c.owner
    number = np.cumsum(np.nan_to_num(c.count))
    upto = number - np.concatenate([[0.0], number])[c.start[:-1]][owner] if n else number
    before = upto - c.count
    with np.errstate(invalid="ignore", divide="ignore"):
        late = (c.t - c.plan[owner] - first[owner]) / each[owner]  # the i-th is in time if i - 1 >= late
        # tokens numbered before+1 .. upto came now; those with number >= late + 1 are in time
        missed = np.clip(np.ceil(late - 1e-9) - before, 0.0, c.count)
    missed_of = np.bincount(owner, weights=np.nan_to_num(missed), minlength=n)
    total = np.bincount(owner, weights=np.nan_to_num(c.count), minlength=n)
    unknown = np.bincount(owner, weights=np.isnan(c.count), minlength=n) > 0
    usable = c.ok & c.streamed & ~unknown & np.isfinite(first) & np.isfinite(each) & (each > 0)
    return np.where(usable, total - missed_of, np.nan), np.where(usable, total, np.nan)


def fluidity(good: Floats, total: Floats, members: Bools) -> Estimate:
    """Over all tokens of the members; `good` and `total` are what `on_time` gives.

    Requests are the independent units of the interval (Wilson, n_eff by cluster).
    """
    use = members & np.isfinite(total) & (total > 0)
    if not use.any():
        return Estimate(reason="needs classes with ttft and tpot, streamed answers and token counts")
    good, total = good[use], total[use]
    share = float(good.sum() / total.sum())
    residual = good - share * total
    k = len(total)
    variance = float(residual @ residual) * correlation_time(residual) * k / max(1, k - 1) / float(total.sum()) ** 2
    n_eff = float(k) if variance <= 0 else min(float(total.sum()), share * (1 - share) / variance)
    lo, hi = wilson(share, max(1.0, n_eff))
    return Estimate(
        value=share, lo=lo, hi=hi, n=round(float(total.sum())), n_eff=n_eff, method="Wilson 95 %, by request"
    )


def _limit(classes: Mapping[str, SloClass], name: str, term: str) -> float:
    found = classes.get(name)
    value = None if found is None else getattr(found, term)
    return float("nan") if value is None else float(value)
