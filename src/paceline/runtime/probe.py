"""Rates of a machine that others use too.

A busy machine disturbs a timed run only downwards, and for as long as a time slice or somebody's burst lasts: a mean,
or one short window, may find a tenth of the truth. So each run is tried in several short tries that are spread out, and
the fastest moment counts. No torch here: what is run, the clock and the sleep are passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

TOTAL_S = 0.3  # no try begins later than this
TRY_S = 0.015
PAUSE_S = 0.02  # between tries


def best_rates(
    runs: Sequence[tuple[Callable[[], object], float]],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[float]:
    """Work per second of each (run, work of one run) at its fastest.

    Takes TOTAL_S and the rest of the try that this ends in; where one run of each takes longer, as long as two.
    """
    begin = clock()
    best = [0.0] * len(runs)
    for run, _ in runs:
        run()  # whatever is compiled or touched for the first time
    while True:
        for index, (run, work) in enumerate(runs):
            best[index] = max(best[index], work / _fastest(run, clock))
        if clock() - begin + PAUSE_S >= TOTAL_S:
            return best
        sleep(PAUSE_S)


def _fastest(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of the fastest of the runs that begin within TRY_S."""
    fastest = float("inf")
    now = clock()
    end = now + TRY_S
    while now < end:
        begin = now
        run()
        now = clock()
        fastest = min(fastest, max(now - begin, 1e-9))
    return fastest
