"""The highest rate at which a share of requests is good, found from few noisy measurements.

`RateSearch` decides only; somebody else measures. It grows the rate until the share is missed (or shrinks it until it
holds), halves the bracket on a log scale, then measures the two ends again until each is sure or has had its share of
repeats. A share that falls with the rate is all that is assumed: what was measured is smoothed by isotonic regression,
so one lucky point above an unlucky one does not decide. The answer is a bracket and an estimate with its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
import numpy as np

from paceline.contracts.artefact import Estimate
from paceline.errors import ConfigError
from paceline.lab.stats.dependence import Floats
from paceline.lab.stats.proportion import wilson

_CLIFF = 0.20
_RESAMPLES = 500


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements at one rate together."""

    rate: float
    good: float
    total: float
    worth: float  # independent samples in `total`
    repeats: int
    fitted: float  # share after isotonic regression

    @property
    def share(self) -> float:
        return self.good / self.total


class Bracket(msgspec.Struct, frozen=True, kw_only=True):
    """`highest_pass`: the highest rate that held the share; `lowest_fail`: the lowest above it that did not."""

    answer: str  # "bracketed", "at least" (never failed), "none" (never held), "open" (the budget ran out before)
    sentence: str
    highest_pass: float | None = None
    lowest_fail: float | None = None
    rate: Estimate = Estimate(unit="req/s")  # where the fitted share crosses the target
    cliff: bool = False  # the share falls by more than 20 points inside the bracket: keep away from its upper end
    points: tuple[Point, ...] = ()


@dataclass
class _Sum:
    good: float = 0.0
    total: float = 0.0
    worth: float = 0.0
    repeats: int = 0


@dataclass
class RateSearch:
    """Raises ConfigError for targets that cannot be searched for. Rates are requests per second."""

    share: float  # of requests that must be good
    start: float
    lowest: float = 0.0  # below it the answer is "none"; 0: start / 64
    highest: float = math.inf  # above it the answer is "at least"
    precision: float = 0.05  # stop when lowest_fail / highest_pass is within 1 + precision
    growth: float = 2.0
    max_repeats: int = 3  # measurements at one end of the bracket
    max_points: int = 20  # measurements in all
    seed: int = 0
    _sums: dict[float, _Sum] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.share < 1 or not 0 < self.start < math.inf or self.growth <= 1 or self.precision <= 0:
            raise ConfigError(
                "this rate search has no answer",
                seen=f"share {self.share}, start {self.start}, growth {self.growth}, precision {self.precision}",
                expected="0 < share < 1, start > 0, growth > 1, precision > 0",
            )
        self.lowest = self.lowest or self.start / 64
        self.start = min(max(self.start, self.lowest), self.highest)

    @property
    def num_measured(self) -> int:
        return sum(s.repeats for s in self._sums.values())

    def add(self, rate: float, good: float, total: float, *, n_eff: float | None = None) -> None:
        """One measurement: `good` of `total` requests, worth `n_eff` independent ones. A rate may be measured again; a
        measurement that says nothing about the server (client bound) must not be added, but be made again."""
        if total <= 0:
            raise ConfigError(
                "a measurement without requests", seen=f"{total} at {rate:g} req/s", expected="at least one"
            )
        found = self._sums.setdefault(rate, _Sum())
        found.good += good
        found.total += total
        found.worth += min(total, n_eff) if n_eff is not None else total
        found.repeats += 1

    def next(self) -> float | None:
        """The rate to measure now; None when the search is over."""
        if self.num_measured >= self.max_points:
            return None
        points = self._points()
        if not points:
            return self.start
        passed, failed = self._ends(points)
        if failed is None:
            top = points[-1].rate
            return self._unsure(passed) if top >= self.highest else min(top * self.growth, self.highest)
        if passed is None:
            low = points[0].rate
            return self._unsure(failed) if low <= self.lowest else max(low / self.growth, self.lowest)
        if failed.rate / passed.rate > 1 + self.precision:
            return _short(math.sqrt(failed.rate * passed.rate))
        return self._unsure(passed) or self._unsure(failed)

    def result(self) -> Bracket:
        """What is known so far; sensible at any moment."""
        points = self._points()
        if not points:
            return Bracket(answer="open", sentence="Nothing was measured.")
        passed, failed = self._ends(points)
        need = f"{100 * self.share:g} % good"
        if passed is None:
            low = points[0]
            return Bracket(
                answer="none" if low.rate <= self.lowest else "open",
                sentence=f"Even {low.rate:.3g} req/s did not hold {need}: {100 * low.share:.1f} %.",
                lowest_fail=low.rate,
                points=points,
            )
        if failed is None:
            return Bracket(
                answer="at least",
                sentence=f"{passed.rate:.3g} req/s still held {need}; nothing above was tried.",
                highest_pass=passed.rate,
                points=points,
            )
        cliff = passed.fitted - failed.fitted > _CLIFF
        narrow = failed.rate / passed.rate <= 1 + self.precision + 1e-9
        sentence = f"{passed.rate:.3g} req/s held {need}, {failed.rate:.3g} did not"
        return Bracket(
            answer="bracketed" if narrow else "open",
            sentence=sentence + (" and the share falls off a cliff between them." if cliff else "."),
            highest_pass=passed.rate,
            lowest_fail=failed.rate,
            rate=self._crossing(points),
            cliff=cliff,
            points=points,
        )

    def _points(self) -> tuple[Point, ...]:
        """By rising rate, with the fitted share."""
        rates = sorted(self._sums)
        sums = [self._sums[rate] for rate in rates]
        if not sums:
            return ()
        fitted = _fit(np.asarray([s.good / s.total for s in sums]), np.asarray([s.worth for s in sums]))
        return tuple(
            Point(rate=rate, good=s.good, total=s.total, worth=s.worth, repeats=s.repeats, fitted=float(fit))
            for rate, s, fit in zip(rates, sums, fitted, strict=True)
        )

    def _ends(self, points: tuple[Point, ...]) -> tuple[Point | None, Point | None]:
        held = [p for p in points if p.fitted >= self.share - 1e-12]
        missed = [p for p in points if p.fitted < self.share - 1e-12]
        return (held[-1] if held else None), (missed[0] if missed else None)

    def _unsure(self, point: Point | None) -> float | None:
        """The rate again, if its interval straddles the target and repeats are left."""
        if point is None or point.repeats >= self.max_repeats:
            return None
        low, high = wilson(point.share, point.worth, 0.90)
        return point.rate if low < self.share <= high else None

    def _crossing(self, points: tuple[Point, ...]) -> Estimate:
        """Where the fitted share, linear in log rate between points, crosses the target. Interval: parametric bootstrap
        of the counts (drawn about the smoothed share: no point is surer than its neighbours allow)."""
        rates = np.log([p.rate for p in points])
        worth = np.asarray([p.worth for p in points])
        fitted = np.asarray([p.fitted for p in points])
        value = _root(rates, fitted, self.share)
        rng = np.random.default_rng(self.seed)
        centre = (fitted * worth + 0.5) / (worth + 1.0)  # an all-good point could still have failed
        draws = rng.binomial(np.maximum(1, np.round(worth)).astype(np.int64), centre, size=(_RESAMPLES, len(points)))
        roots = [_root(rates, _fit(d / np.maximum(1, np.round(worth)), worth), self.share) for d in draws]
        low, high = np.percentile(np.clip(roots, rates[0], rates[-1]), [2.5, 97.5])
        return Estimate(
            value=math.exp(value),
            lo=math.exp(float(low)),
            hi=math.exp(float(high)),
            n=round(float(sum(p.total for p in points))),
            n_eff=float(worth.sum()),
            method="isotonic fit, parametric bootstrap 95 %",
            unit="req/s",
        )


def _fit(share: Floats, worth: Floats) -> Floats:
    """Falling with the rate."""
    from scipy.optimize import isotonic_regression  # half a second to import, and few search

    return np.asarray(isotonic_regression(share, weights=np.maximum(worth, 1e-9), increasing=False).x)


def _root(log_rates: Floats, fitted: Floats, share: float) -> float:
    above = np.flatnonzero(fitted >= share - 1e-12)
    if not len(above):
        return float(log_rates[0])
    last = int(above[-1])
    if last == len(fitted) - 1:
        return float(log_rates[-1])
    fall = fitted[last] - fitted[last + 1]
    part = (fitted[last] - share) / fall if fall > 0 else 0.0
    return float(log_rates[last] + part * (log_rates[last + 1] - log_rates[last]))


def _short(rate: float) -> float:
    """Four digits are enough, and a rate measured again must be equal."""
    return float(f"{rate:.4g}")
