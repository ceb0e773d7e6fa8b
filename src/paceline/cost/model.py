"""The calibrated cost model: prices that start from counts and rates, or from timed steps, and follow what steps take.

Implements `contracts.ports.CostModel`. Every answer is a sum of prices of 0 or more times amounts that grow with the
step (`features`), so no step is cheaper than a smaller one. What it knew at start is `prices`; an equal one made from
those, which observes the same steps, gives the same answers to the bit. That is what makes decisions replayable.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Protocol

from paceline.contracts.ports import EngineSnapshot, Prices, StepShape, prefill_shape
from paceline.cost.estimate import NINE_IN_TEN, Estimate, Tier
from paceline.cost.features import KNOTS, NUM_FEATURES, decode_shape, features
from paceline.cost.fit import PriceFit
from paceline.cost.prior import HIGH, LOW
from paceline.cost.room import most_tokens
from paceline.cost.ttft import predict_ttft

NEAR = 0.02  # sizes this close to a timed one count as it
BEYOND = 0.1  # sizes this far out of what was timed are extrapolated
UNSURE = 0.2  # relative standard deviation of prices above which an answer counts as extrapolated
SETTLED = 100  # observations after which one step in `EVERY` is enough: learning takes the engine's own time
EVERY = 4
PRIOR_NOISE = 0.15  # relative; of a step against a model that has seen none
_LAST_KNOT = 4 * KNOTS[-1]


class Prior(Protocol):
    """Whoever prices a step before any was timed."""

    def step_ms(self, shape: StepShape) -> float: ...


class StepCost:
    """Prices of one model on one device. The arguments are those in `prices`; see `from_prior` for a fresh one.

    `low`, `high` [5]: the smallest and largest step observed (positions, rows, logits, context, further pairs);
    `timed` [5 * n]: sizes that were timed on purpose, one after another. `learning=0`: `observe` does nothing.
    `passed`: steps since the last one that was learnt from. Raises ValueError for what are no prices.
    """

    def __init__(
        self,
        *,
        scale: Sequence[float],
        weights: Sequence[float],
        covariance: Sequence[float] | None = None,
        noise: float = PRIOR_NOISE * PRIOR_NOISE,
        run: float = 0,
        num_observed: float = 0,
        low: Sequence[float] = (),
        high: Sequence[float] = (),
        timed: Sequence[float] = (),
        learning: float = 1,
        passed: float = 0,
    ) -> None:
        _check(scale, weights, covariance, (noise, run, num_observed, passed), low, high, timed)
        self._fit = PriceFit(scale, weights, covariance, noise, int(run), int(num_observed))
        self._low, self._high = list(low), list(high)
        self._timed = tuple(timed)
        self._learning = bool(learning)
        self._passed = int(passed)

    @classmethod
    def from_prior(cls, prior: Prior) -> StepCost:
        """One that has seen no step: the prior's prices at the knots of the curve, and between a few pairs of steps."""
        scale, weights = prior_prices(prior)
        return cls(scale=scale, weights=weights)

    def frozen(self) -> StepCost:
        """The same prices, which stay."""
        return StepCost(**{**self.prices, "learning": 0.0})  # type: ignore[arg-type]

    def times(self, factor: float) -> StepCost:
        """One by which every step takes `factor` times as long: a machine that became slower at everything."""
        return StepCost(**{**self.prices, "scale": tuple(factor * unit for unit in self._fit.scale)})  # type: ignore[arg-type]

    @property
    def prices(self) -> Prices:
        """The arguments that make one that knows the same."""
        fit = self._fit
        return {
            "scale": fit.scale,
            "weights": tuple(fit.weights),
            "covariance": fit.covariance,
            "noise": fit.noise,
            "run": float(fit.run),
            "num_observed": float(fit.num_observed),
            "low": tuple(self._low),
            "high": tuple(self._high),
            "timed": self._timed,
            "learning": float(self._learning),
            "passed": float(self._passed),
        }

    @property
    def num_observed(self) -> int:
        return self._fit.num_observed

    @property
    def unit_prices(self) -> tuple[float, ...]:
        """Milliseconds per unit of each of `features.NAMES`."""
        return tuple(self._fit.prices)

    # --- the port

    def step_ms(self, shape: StepShape) -> float:
        """Milliseconds of one step; a step without rows costs nothing."""
        return self._fit.expected(features(shape)) if shape.num_rows else 0.0

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        """What a chunk takes beyond the fixed part of a step that runs anyway."""
        if num_tokens <= 0:
            return 0.0
        chunk = features(prefill_shape(num_tokens, num_cached, sampled=False))
        return self._fit.expected(chunk) - self._fit.prices[0]

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        """Most positions of one prompt, behind `num_cached` others, that a step of `shape` takes within `ms`."""
        return most_tokens(self.step_ms, ms, shape, num_cached, at_most)

    def predict_ttft(self, snapshot: EngineSnapshot, num_prompt: int, num_cached: int = 0) -> Estimate:
        """Milliseconds to the first token of a prompt that comes now."""
        return predict_ttft(self, snapshot, num_prompt, num_cached)

    def observe(self, shape: StepShape, ms: float) -> None:
        """A step of `shape` took `ms`. Nothing is learnt from a step without rows or time, and once prices have settled
        one step in `EVERY` teaches them."""
        if not self._learning or not shape.num_rows or not 0.0 < ms < float("inf"):
            return
        self._passed += 1
        if self._fit.num_observed >= SETTLED and self._passed < EVERY:
            return
        self._passed = 0
        amounts = features(shape)
        self._fit.observe(amounts, ms)
        self._low, self._high = grown(self._low, self._high, sizes(amounts))

    # --- how sure

    def estimate(self, shape: StepShape) -> Estimate:
        """The step's time with an interval that nine in ten steps of this size are to fall into."""
        if not shape.num_rows:
            return Estimate(value=0.0, lo=0.0, hi=0.0, tier="measured", why="a step without rows")
        amounts = features(shape)
        value = self._fit.expected(amounts)
        if not self._high:
            return Estimate(
                value=value, lo=value * LOW, hi=value * HIGH, tier="first principles", why="no step was timed yet"
            )
        of_prices = sqrt(self._fit.uncertainty(amounts))
        tier, why = self._tier(sizes(amounts), of_prices)
        spread = sqrt(of_prices * of_prices + self._fit.noise)
        if tier == "extrapolated":
            spread = max(spread, UNSURE)
        half = NINE_IN_TEN * spread * value
        return Estimate(value=value, lo=max(0.0, value - half), hi=value + half, tier=tier, why=why)

    def _tier(self, size: Sequence[float], of_prices: float) -> tuple[Tier, str]:
        for at in range(0, len(self._timed), len(size)):
            if all(abs(a - b) <= NEAR * b for a, b in zip(size, self._timed[at : at + len(size)], strict=True)):
                return "measured", "a step of this size was timed"
        for name, count, low, high in zip(SIZES, size, self._low, self._high, strict=True):
            if count > high * (1 + BEYOND) or count < low * (1 - BEYOND):
                return "extrapolated", f"{count:g} {name}; {low:g} to {high:g} were observed"
        if of_prices > UNSURE:
            return "extrapolated", f"prices of such a step are known to {of_prices:.0%} only"
        return "interpolated", f"between {self.num_observed or len(self._timed) // len(size)} observed steps"


SIZES = ("positions", "rows", "rows of logits", "tokens of context", "further pairs")


def _check(
    scale: Sequence[float],
    weights: Sequence[float],
    covariance: Sequence[float] | None,
    numbers: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    timed: Sequence[float],
) -> None:
    """Raise ValueError for arguments that no `prices` has: they may come from a file."""
    for name, values in (("scale", scale), ("weights", weights), ("low", low), ("high", high), ("timed", timed)):
        if not all(0.0 <= value < inf for value in values):
            raise ValueError(f"{name}: a number is not 0 or more")
    triangle = () if covariance is None else covariance
    if not (all(-inf < value < inf for value in (*triangle, *numbers)) and numbers[0] > 0.0):
        raise ValueError("a number is not finite, or there is no noise")
    if not (len(scale) == len(weights) == NUM_FEATURES):
        raise ValueError(f"{len(scale)} scales and {len(weights)} weights, expected {NUM_FEATURES}")
    if covariance is not None and len(covariance) != NUM_FEATURES * (NUM_FEATURES + 1) // 2:
        raise ValueError(f"{len(covariance)} covariances, expected the upper triangle of {NUM_FEATURES} prices")
    if len(low) != len(high) or len(low) not in (0, len(SIZES)) or len(timed) % len(SIZES):
        raise ValueError(f"{len(low)}, {len(high)} and {len(timed)} sizes of step, expected {len(SIZES)} for each")


def sizes(amounts: Sequence[float]) -> tuple[float, ...]:
    """[5] of `SIZES`, from a step's features."""
    return (sum(amounts[1:6]), *amounts[6:])


def grown(low: Sequence[float], high: Sequence[float], size: Sequence[float]) -> tuple[list[float], list[float]]:
    """The range that holds `size` as well."""
    if not high:
        return list(size), list(size)
    return [min(a, b) for a, b in zip(low, size, strict=True)], [max(a, b) for a, b in zip(high, size, strict=True)]


def prior_prices(prior: Prior) -> tuple[list[float], list[float]]:
    """Scales and weights [NUM_FEATURES each] that reproduce a prior at a few sizes of step.

    The price of a position, a row, a row of logits and so on is the difference of two steps that differ in it alone.
    Reading the head for the first row of logits counts to the fixed part. A scale is never far below what a position
    costs in a large step, so that a price the prior holds for nothing can still be learnt.
    """

    def tokens_ms(count: int) -> float:
        return prior.step_ms(
            StepShape(num_tokens=count, num_rows=1, num_sampled=0, context_tokens=0, attention_pairs=count)
        )

    def rows_ms(rows: int, logits: int) -> float:
        return prior.step_ms(
            StepShape(num_tokens=64, num_rows=rows, num_sampled=logits, context_tokens=0, attention_pairs=64)
        )

    at = [1, *KNOTS, _LAST_KNOT]
    curve = [tokens_ms(count) for count in at]
    slopes = [(b - a) / (j - i) for i, j, a, b in zip(at, at[1:], curve, curve[1:], strict=False)]
    row = (rows_ms(64, 0) - rows_ms(1, 0)) / 63
    logit = (rows_ms(1, 33) - rows_ms(1, 1)) / 32
    first_logit = rows_ms(1, 1) - rows_ms(1, 0) - logit
    context = (prior.step_ms(decode_shape(4, 1024)) - prior.step_ms(decode_shape(4, 0))) / (4 * 1024)
    size = KNOTS[-1]
    chunk = prefill_shape(size, sampled=False)
    pair = (prior.step_ms(chunk) - curve[at.index(size)]) / (chunk.attention_pairs - size)
    fixed = max(0.0, curve[0] - slopes[0] - row + max(0.0, first_logit))
    prices = [max(0.0, price) for price in (fixed, *slopes, row, logit, context, pair)]
    large = curve[-1] / at[-1]
    least = (0.05 * curve[0], *[0.5 * large] * len(slopes), 0.1 * large, 0.1 * large, 1e-4 * large, 1e-5 * large)
    scale = [max(price, floor) for price, floor in zip(prices, least, strict=True)]
    return scale, [price / unit for price, unit in zip(prices, scale, strict=True)]
