"""The highest rate that holds the SLO, for one server: `stats.RateSearch` decides, measured points feed it.

    result, runs = search_rate(lambda rate, repeat: measure(..., rate=rate, seed=...), share=0.95, options=Search())

`NodeSearch` is the same with the loop turned inside out, for who measures several servers in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.contracts.workload import SloClass
from paceline.errors import ConfigError, LabError
from paceline.lab.artefact import StoredRun
from paceline.lab.experiment.figures import samples_of
from paceline.lab.experiment.results import PointResult, RateLevel, RateResult
from paceline.lab.stats.proportion import share_estimate
from paceline.lab.stats.search import Bracket, RateSearch

MAX_INVALID = 3  # points of one search that say nothing about the server, after which it gives up


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a search goes: the [search] table of a spec. Rates are requests/s."""

    start_rps: float = 1.0
    lowest_rps: float = 0.0  # 0: start / 64
    highest_rps: float = 1000.0
    precision: float = 0.1  # lowest fail / highest pass - 1
    max_repeats: int = 3  # at an end of the bracket that is not sure
    max_points: int = 16
    points_per_visit: int = 3  # before the next node's turn, so that the arms stay interleaved
    share: float | None = None  # of requests that must be good; None: what the classes ask


def check_search(options: Search) -> None:
    """Raises ConfigError for a search that could not begin, or would never end."""
    low, start, high = options.lowest_rps, options.start_rps, options.highest_rps
    if not 0 < start <= high or not 0 <= low <= start or options.precision <= 0:
        raise ConfigError(
            "[search] has rates that cannot be",
            seen=f"lowest_rps {low:g}, start_rps {start:g}, highest_rps {high:g}, precision {options.precision:g}",
            expected="0 <= lowest <= start <= highest, start and precision above 0",
        )
    if options.share is not None and not 0 < options.share <= 1:
        raise ConfigError("[search] share is the part of requests that must be good", seen=options.share, fix="say 0.9")
    for name in ("max_repeats", "max_points", "points_per_visit"):
        if getattr(options, name) < 1:
            raise ConfigError(f"[search] {name} is 1 or more", seen=getattr(options, name))


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement at one rate."""

    rate_rps: float
    num_good: int
    num_requests: int
    n_eff: float
    window_s: float


def level_of(run: StoredRun, rate: float) -> Level:
    """Good and counted requests of a run's window."""
    _, samples = samples_of(run.info, run.records)
    counted = samples["attainment"][~np.isnan(samples["attainment"])]
    return Level(
        rate_rps=rate,
        num_good=int(counted.sum()),
        num_requests=len(counted),
        n_eff=run.metrics.whole.attainment.n_eff or float(len(counted)),
        window_s=run.metrics.window.seconds,
    )


def asked_share(classes: Sequence[SloClass], search: Search | None = None) -> float:
    """The share of all requests that must be good: the search's own, else the mean of what the classes ask. That each
    class reaches its own is the goodput gate's question."""
    if search is not None and search.share is not None:
        return search.share
    return sum(c.share for c in classes) / len(classes) if classes else 0.95


class NodeSearch:
    """A search that is told its measurements one by one."""

    def __init__(self, options: Search, share: float, seed: int = 0) -> None:
        self.share = min(share, 0.999)  # a share of 1 could never be shown
        self._search = RateSearch(
            share=self.share,
            start=options.start_rps,
            lowest=options.lowest_rps,
            highest=options.highest_rps,
            precision=options.precision,
            max_repeats=options.max_repeats,
            max_points=options.max_points,
            seed=seed,
        )
        self._levels: list[Level] = []

    def next(self) -> tuple[float, int] | None:
        """(rate, how often it was measured already); None when the search is over."""
        rate = self._search.next()
        return None if rate is None else (rate, sum(level.rate_rps == rate for level in self._levels))

    def add(self, level: Level) -> None:
        self._search.add(level.rate_rps, level.num_good, level.num_requests, n_eff=level.n_eff)
        self._levels.append(level)

    def result(self) -> RateResult:
        """What is known so far."""
        bracket = self._search.result()
        levels = tuple(self._taken_together(rate) for rate in sorted({level.rate_rps for level in self._levels}))
        passed = next((level for level in levels if level.rate_rps == bracket.highest_pass), None)
        return RateResult(
            share=self.share,
            answer=bracket.answer,
            highest_pass_rps=bracket.highest_pass,
            lowest_fail_rps=bracket.lowest_fail,
            max_rate_rps=_crossing(bracket),
            goodput_at_max_rps=passed.goodput_rps if passed else Estimate(reason="no rate held", unit="req/s"),
            cliff=bracket.cliff,
            sentence=bracket.sentence,
            levels=levels,
        )

    def _taken_together(self, rate: float) -> RateLevel:
        here = [level for level in self._levels if level.rate_rps == rate]
        good, total = sum(level.num_good for level in here), sum(level.num_requests for level in here)
        seconds = sum(level.window_s for level in here)
        share = share_estimate(good, total, n_eff=sum(level.n_eff for level in here))
        arriving = total / seconds if seconds > 0 else 0.0  # what came, of which `share` was good
        return RateLevel(
            rate_rps=rate,
            num_points=len(here),
            num_requests=total,
            num_good=good,
            attainment=share,
            goodput_rps=msgspec.structs.replace(
                share,
                value=_times(share.value, arriving),
                lo=_times(share.lo, arriving),
                hi=_times(share.hi, arriving),
                unit="req/s",
            ),
            holds=share.value is not None and share.value >= self.share,
        )


def _crossing(bracket: Bracket) -> Estimate:
    """Between its ends the share is drawn as a line. Where it falls off a cliff that line is a guess, so the interval
    is the bracket at least."""
    found = bracket.rate
    if not bracket.cliff or found.lo is None or found.hi is None:
        return found
    assert bracket.highest_pass is not None, "a cliff has two ends"
    assert bracket.lowest_fail is not None, "a cliff has two ends"
    return msgspec.structs.replace(
        found,
        lo=min(found.lo, bracket.highest_pass),
        hi=max(found.hi, bracket.lowest_fail),
        method=f"{found.method}; a cliff: the bracket at least",
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def replay(options: Search, share: float, points: Iterable[PointResult], seed: int = 0) -> NodeSearch:
    """The search as it stands after these points, in whichever order they were measured."""
    search = NodeSearch(options, share, seed)
    for point in points:
        if point.status == "ok" and point.rate_rps is not None and point.num_requests:
            search.add(
                Level(
                    rate_rps=point.rate_rps,
                    num_good=point.num_good,
                    num_requests=point.num_requests,
                    n_eff=point.n_eff or float(point.num_requests),
                    window_s=point.window_s,
                )
            )
    return search


def search_rate(
    measure_at: Callable[[float, int], StoredRun], *, share: float, options: Search | None = None, seed: int = 0
) -> tuple[RateResult, list[StoredRun]]:
    """Measures until the bracket is narrow. `measure_at(rate, repeat)` makes one run; runs of equal repeats should have
    equal seeds. A run that is invalid (client bound, ...) is made again, MAX_INVALID times in all, then LabError. A
    partial run (interrupted) ends the search with what is known."""
    search = NodeSearch(options or Search(), share, seed)
    runs: list[StoredRun] = []
    num_invalid = 0
    while (wanted := search.next()) is not None:
        rate, repeat = wanted
        run = measure_at(rate, repeat)
        runs.append(run)
        if run.info.status != "complete":
            break
        why = next((c.sentence for c in run.metrics.cautions if c.invalidates), None)
        if why is None:
            search.add(level_of(run, rate))
            continue
        num_invalid += 1
        if num_invalid >= MAX_INVALID:
            raise LabError(f"the rate {rate:g} requests/s cannot be measured here", seen=why)
    return search.result(), runs
