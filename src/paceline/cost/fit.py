"""Prices that follow what steps take: a Kalman filter over weights of zero or more, deaf to outliers, that forgets.

A step's expected time is `sum(price[i] * amount[i])`, `price = scale * weight`. Weights are what is estimated; scales
keep them near 1. Errors are relative to the expected time, so a step of 5 ms and one of 500 count alike. Each
observation, with `z` its amounts in units of its expected time and `r` its relative error:

    h = z P z                       what the weights' own uncertainty lets the expected time be off by, squared
    weight += P z r / (h + noise / trust)
    P      -= P z z P / (h + noise / trust)

- *Outliers*: `trust` is 1 within two standard deviations of `h + noise`, and falls as 1 / |r| beyond (Huber's weights),
  so one step that somebody else's burst made ten times as long moves nothing to speak of.
- *Change*: eight such steps in a row, all on one side, are no outliers. Then the uncertainty of a common factor on all
  prices is put back, and the next steps set it: a machine that became slower is slower at everything.
- *Forgetting*: the same common factor gains a little uncertainty with time, and each price whose part of a step is
  there. Both stop at what a fresh prior has. What is not seen (prompts, in an hour of decoding) keeps its own price
  relative to the rest.
- *Never negative*: a weight that an update takes below 0 is set to 0, and the others move as the covariance says.

Plain floats in one order and correctly rounded operations only (square roots, no powers or logarithms), so the same
observations give the same bits on any machine and in any version of Python: decisions that rest on prices can be
replayed. Sums are `fsum`, which rounds once: the built-in `sum` rounds each addition until 3.11 and fewer from 3.12 on.

Sources: R. E. Kalman, J. Basic Eng. 82, 1960; P. J. Huber, Ann. Math. Stat. 35, 1964; projection onto a constraint: D.
Simon, IET Control Theory Appl. 4(8), 2010.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

HUBER = 2.0  # standard deviations
HUBER_MEAN = 0.9205  # of min(x, HUBER) squared, x from a standard normal distribution
RUN = 8  # observations in a row, beyond HUBER on one side, that make a change
MEMORY = 150  # observations after which old ones count little
DRIFT_EVERY = 8  # observations; rare, because it touches every entry
NOISE_RATE = 0.02
MIN_NOISE, MAX_NOISE = 0.01, 0.5  # relative standard deviation of a single step
COMMON, OWN = 0.5, 0.7  # relative standard deviations of a prior: of all prices together, and of each
LEAST_WEIGHT = 0.5  # what `OWN` is relative to, for weights that start near 0
MIN_MS = 1e-3


class PriceFit:
    """`covariance`: its upper triangle, row by row; None: that of a prior. `noise`: variance of a relative error."""

    def __init__(
        self,
        scale: Sequence[float],
        weights: Sequence[float],
        covariance: Sequence[float] | None = None,
        noise: float = 0.01,
        run: int = 0,
        num_observed: int = 0,
    ) -> None:
        self.scale = tuple(scale)
        self.weights = list(weights)
        self.noise = noise
        self.run = run
        self.num_observed = num_observed
        self._covariance = prior_covariance(weights) if covariance is None else _square(covariance, len(self.weights))
        self.prices = [s * w for s, w in zip(self.scale, self.weights, strict=True)]

    def expected(self, amounts: Sequence[float]) -> float:
        """Milliseconds of a step with these amounts."""
        return fsum([p * a for p, a in zip(self.prices, amounts, strict=False)])

    def uncertainty(self, amounts: Sequence[float]) -> float:
        """Variance of the relative error of `expected` that is due to the weights alone."""
        inverse = 1.0 / max(self.expected(amounts), MIN_MS)
        parts = [(i, a * self.scale[i] * inverse) for i, a in enumerate(amounts) if a]
        return max(0.0, fsum([a * b * self._covariance[i][j] for i, a in parts for j, b in parts]))

    @property
    def covariance(self) -> tuple[float, ...]:
        """The upper triangle, row by row."""
        return tuple(row[j] for i, row in enumerate(self._covariance) for j in range(i, len(row)))

    def observe(self, amounts: Sequence[float], ms: float) -> None:
        """A step with these amounts took `ms`, more than 0."""
        expected = max(self.expected(amounts), MIN_MS)
        inverse = 1.0 / expected
        scale, covariance = self.scale, self._covariance
        parts = [(i, a * scale[i] * inverse) for i, a in enumerate(amounts) if a]
        error = (ms - expected) * inverse
        gain = [fsum([row[i] * a for i, a in parts]) for row in covariance]
        own = max(0.0, fsum([gain[i] * a for i, a in parts]))
        total = own + self.noise
        deviation = abs(error) / sqrt(total)
        if deviation > HUBER:
            side = 1 if error > 0 else -1
            self.run = self.run + side if self.run * side > 0 else side
            if abs(self.run) >= RUN:
                self.run = 0
                self._loosen(COMMON * COMMON, 0.04, [i for i, _ in parts])
                self.observe(amounts, ms)
                return
        else:
            self.run = 0
        trust = 1.0 if deviation <= HUBER else HUBER / deviation
        spread = own + self.noise / trust
        share = 1.0 / spread
        step = error * share
        root = sqrt(share)
        scaled = [g * root for g in gain]  # then a product has the same bits on both sides of the diagonal
        for i, g in enumerate(scaled):
            if g:
                self.weights[i] += gain[i] * step
                covariance[i] = [c - g * other for c, other in zip(covariance[i], scaled, strict=False)]
        self._project()
        squared = min(error * error, HUBER * HUBER * total) / HUBER_MEAN
        self.noise += NOISE_RATE * (squared * self.noise / total - self.noise)
        self.noise = min(max(self.noise, MIN_NOISE * MIN_NOISE), MAX_NOISE * MAX_NOISE)
        self.num_observed += 1
        if self.num_observed % DRIFT_EVERY == 0:
            amount = DRIFT_EVERY * self.noise / (MEMORY * MEMORY)
            self._loosen(amount, amount, [i for i, _ in parts])
        self.prices = [s * w for s, w in zip(scale, self.weights, strict=False)]

    def _loosen(self, common: float, own: float, active: Sequence[int]) -> None:
        """Add uncertainty: variance `common` of a factor on all weights, `own` of each that was seen. Weights that are
        as uncertain as in a prior gain none."""
        covariance, weights = self._covariance, self.weights
        root = sqrt(common)
        factors = [root * w if covariance[i][i] < _most_variance(w) else 0.0 for i, w in enumerate(weights)]
        for i, factor in enumerate(factors):
            if factor:
                covariance[i] = [c + factor * other for c, other in zip(covariance[i], factors, strict=False)]
        for i in active:
            size = max(weights[i], LEAST_WEIGHT)
            if covariance[i][i] < _most_variance(weights[i]):
                covariance[i][i] += own * size * size

    def _project(self) -> None:
        """Weights below 0 to 0, the worst first; the rest as the covariance says."""
        weights, covariance = self.weights, self._covariance
        for _ in weights:
            lowest = min(weights)
            if lowest >= 0.0:
                return
            at = weights.index(lowest)
            row = covariance[at]
            if row[at] > 0.0:
                part = lowest / row[at]
                for i, c in enumerate(row):
                    weights[i] -= part * c
            weights[at] = 0.0
        for i, weight in enumerate(weights):
            if weight < 0.0:
                weights[i] = 0.0


def prior_covariance(weights: Sequence[float]) -> list[list[float]]:
    """[weights, weights] of a first guess: a factor common to all, and each weight's own error."""
    common = COMMON * COMMON
    covariance = [[common * (a * b) for b in weights] for a in weights]
    for i, weight in enumerate(weights):
        covariance[i][i] = _most_variance(weight)
    return covariance


def _most_variance(weight: float) -> float:
    size = max(weight, LEAST_WEIGHT)
    return COMMON * COMMON * weight * weight + OWN * OWN * size * size


def _square(triangle: Sequence[float], size: int) -> list[list[float]]:
    assert len(triangle) == size * (size + 1) // 2, "an upper triangle, row by row"
    rows = [[0.0] * size for _ in range(size)]
    values = iter(triangle)
    for i in range(size):
        for j in range(i, size):
            rows[i][j] = rows[j][i] = next(values)
    return rows
