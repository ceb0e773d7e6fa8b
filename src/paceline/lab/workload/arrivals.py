"""When requests come: processes that give arrival times over a span. One arrival is one request, or one session.

Renewal processes start in equilibrium (the first gap is what a visitor at a random moment would wait), so the expected
number of arrivals is rate x span from the first second on, bursty or not. Processes whose rate changes are Poisson in
their own time: unit-rate arrivals mapped through the inverse of the integrated rate (Cinlar 1975). Scaling a rate never
changes the order of arrivals: the same draws are spread over another time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigError
from paceline.lab.workload.draw import Floats, small, uniforms

_MAX_ARRIVALS = 5_000_000


class Arrival(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all arrival processes share."""

    def times(self, span_s: float, *names: object) -> Floats:
        """Arrival times within [0, span_s), rising, by draws under these names.  # [num_arrivals]"""
        raise NotImplementedError

    def mean_rps(self, span_s: float) -> float:
        """Expected arrivals per second over the span."""
        raise NotImplementedError

    def scaled(self, factor: float) -> Arrival:
        """The same process, `factor` times as fast."""
        raise NotImplementedError

    def check(self, where: str) -> None:
        """ConfigError for a process that cannot be."""


class Closed(Arrival, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="closed"):
    """`slots` clients that each send their next request when the last has ended. Says nothing about an open loop."""

    slots: int
    requests: int | None = None  # in all; the spec's num_requests if None

    def times(self, span_s: float, *names: object) -> Floats:
        raise AssertionError("a closed loop has no schedule")

    def mean_rps(self, span_s: float) -> float:
        return 0.0

    def scaled(self, factor: float) -> Closed:
        raise ConfigError(
            "the rate of a closed loop cannot be set: it follows from the server",
            fix="scale an open arrival (poisson, gamma, ...), or change slots",
        )

    def check(self, where: str) -> None:
        if self.slots < 1 or (self.requests is not None and self.requests < 1):
            raise ConfigError(f"{where}: slots and requests must be at least 1", seen=f"{self.slots}, {self.requests}")


class Rated(Arrival, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processes with one rate, in arrivals per second."""

    rate: float

    def mean_rps(self, span_s: float) -> float:
        return self.rate

    def scaled(self, factor: float) -> Arrival:
        return msgspec.structs.replace(self, rate=self.rate * factor)

    def check(self, where: str) -> None:
        _positive(where, rate=self.rate)


class Constant(Rated, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="constant"):
    """Equal gaps, from a phase of its own: streams do not march in step."""

    def times(self, span_s: float, *names: object) -> Floats:
        phase = small(*names, "phase").random()
        num = math.ceil(span_s * self.rate - phase - 1e-9)
        return np.asarray((np.arange(max(0, num)) + phase) / self.rate, dtype=np.float64)


class Poisson(Rated, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="poisson"):
    """Independent users: exponential gaps."""

    def times(self, span_s: float, *names: object) -> Floats:
        return _cumulate(lambda u: -np.log1p(-u) / self.rate, None, span_s, self.rate, names)


class Gamma(Rated, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gamma"):
    """Gamma gaps with coefficient of variation `cv`: 1 is Poisson, above it bursty, below it regular."""

    cv: float

    def times(self, span_s: float, *names: object) -> Floats:
        from scipy.special import gammaincinv

        shape = 1 / self.cv**2
        scale = 1 / (self.rate * shape)
        # a gap met at a random moment is length-biased, which makes a gamma of shape k one of shape k + 1
        first = small(*names, "phase").random() * scale * float(gammaincinv(shape + 1, small(*names, "first").random()))
        return _cumulate(lambda u: scale * gammaincinv(shape, u), first, span_s, self.rate, names)

    def check(self, where: str) -> None:
        Rated.check(self, where)
        _positive(where, cv=self.cv)


class Weibull(Rated, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="weibull"):
    """Weibull gaps with coefficient of variation `cv`: above 1 its tail is longer than the gamma's."""

    cv: float

    def times(self, span_s: float, *names: object) -> Floats:
        from scipy.special import gammaincinv

        shape = weibull_shape(self.cv)
        scale = 1 / (self.rate * math.gamma(1 + 1 / shape))
        # length-biased: (X / scale) ** shape is a gamma variable of shape 1 + 1 / k
        biased = float(gammaincinv(1 + 1 / shape, small(*names, "first").random())) ** (1 / shape)
        first = small(*names, "phase").random() * scale * biased
        return _cumulate(lambda u: scale * (-np.log1p(-u)) ** (1 / shape), first, span_s, self.rate, names)

    def check(self, where: str) -> None:
        Rated.check(self, where)
        if not 0.05 <= self.cv <= 20:
            raise ConfigError(
                f"{where}.cv is outside what a Weibull law gives here", seen=self.cv, expected="0.05 to 20"
            )


class Burst(Arrival, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="burst"):
    """`size` arrivals at once, every `every_s` seconds from half a period on; spread over `spread_s` if that is set."""

    size: int
    every_s: float
    spread_s: float = 0.0

    def times(self, span_s: float, *names: object) -> Floats:
        starts = np.arange(0.5 * self.every_s, span_s, self.every_s)
        spread = self.spread_s * uniforms(len(starts) * self.size, *names, "spread").reshape(len(starts), self.size)
        times = np.sort((starts[:, None] + spread).ravel())
        return np.asarray(times[times < span_s], dtype=np.float64)

    def mean_rps(self, span_s: float) -> float:
        return self.size / self.every_s

    def scaled(self, factor: float) -> Burst:
        return msgspec.structs.replace(self, every_s=self.every_s / factor, spread_s=self.spread_s / factor)

    def check(self, where: str) -> None:
        _positive(where, size=self.size, every_s=self.every_s)
        if not 0 <= self.spread_s <= self.every_s:
            raise ConfigError(
                f"{where}.spread_s must lie within the period", seen=self.spread_s, expected=f"0 to {self.every_s}"
            )


class Ramp(Arrival, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ramp"):
    """Poisson with a rate that goes straight from `start` to `end` over the span."""

    start: float
    end: float

    def times(self, span_s: float, *names: object) -> Floats:
        grid = np.linspace(0, span_s, 4097)
        area = self.start * grid + (self.end - self.start) * grid**2 / (2 * span_s)
        return _warp(grid, area, names)

    def mean_rps(self, span_s: float) -> float:
        return (self.start + self.end) / 2

    def scaled(self, factor: float) -> Ramp:
        return Ramp(start=self.start * factor, end=self.end * factor)

    def check(self, where: str) -> None:
        if min(self.start, self.end) < 0 or self.start + self.end <= 0:
            raise ConfigError(f"{where}: rates must be at least 0 and not both 0", seen=f"{self.start}, {self.end}")


class Steps(Arrival, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="steps"):
    """Poisson at each of `rates` in turn, each for an equal part of the span."""

    rates: tuple[float, ...]

    def times(self, span_s: float, *names: object) -> Floats:
        grid = np.linspace(0, span_s, len(self.rates) + 1)
        return _warp(grid, np.concatenate([[0.0], np.cumsum(np.asarray(self.rates) * np.diff(grid))]), names)

    def mean_rps(self, span_s: float) -> float:
        return sum(self.rates) / len(self.rates)

    def scaled(self, factor: float) -> Steps:
        return Steps(rates=tuple(rate * factor for rate in self.rates))

    def check(self, where: str) -> None:
        if not self.rates or min(self.rates) < 0 or sum(self.rates) <= 0:
            raise ConfigError(f"{where}.rates must be at least 0 and not all 0", seen=self.rates)


class Periodic(Rated, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="periodic"):
    """Poisson with the rate rate x (1 + amplitude sin(2 pi t / period_s + phase)): a day in small."""

    period_s: float
    amplitude: float = 0.8
    phase: float = 0.0

    def times(self, span_s: float, *names: object) -> Floats:
        grid = np.linspace(0, span_s, 1 + max(4096, 64 * math.ceil(span_s / self.period_s)))
        turn = 2 * math.pi / self.period_s
        swing = self.amplitude / turn * (math.cos(self.phase) - np.cos(turn * grid + self.phase))
        return _warp(grid, np.maximum.accumulate(self.rate * (grid + swing)), names)

    def check(self, where: str) -> None:
        Rated.check(self, where)
        _positive(where, period_s=self.period_s)
        if not 0 <= self.amplitude <= 1:
            raise ConfigError(f"{where}.amplitude must be a share of the rate", seen=self.amplitude, expected="0 to 1")


class Mmpp(Arrival, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mmpp"):
    """Markov-modulated Poisson: stays in state i for an exponential time of mean `dwell_s[i]`, arrivals at `rates[i]`.

    The next state is any other, alike; it starts in a state by how much of the time each takes.
    """

    rates: tuple[float, ...]
    dwell_s: tuple[float, ...]

    def times(self, span_s: float, *names: object) -> Floats:
        path = small(*names, "path")
        states = range(len(self.rates))
        state = path.choices(states, weights=self.dwell_s)[0]
        now, area = 0.0, 0.0
        grid, areas = [0.0], [0.0]
        while now < span_s:
            stay = min(path.expovariate(1 / self.dwell_s[state]), span_s - now)
            now, area = now + stay, area + stay * self.rates[state]
            grid.append(now)
            areas.append(area)
            state = path.choice([other for other in states if other != state])
            if span_s - now < 1e-9:
                break
        return _warp(np.asarray(grid), np.asarray(areas), names)

    def mean_rps(self, span_s: float) -> float:
        return sum(r * d for r, d in zip(self.rates, self.dwell_s, strict=True)) / sum(self.dwell_s)

    def scaled(self, factor: float) -> Mmpp:
        return Mmpp(rates=tuple(rate * factor for rate in self.rates), dwell_s=self.dwell_s)

    def check(self, where: str) -> None:
        if len(self.rates) < 2 or len(self.rates) != len(self.dwell_s):
            raise ConfigError(
                f"{where}: mmpp needs two states or more, with a rate and a dwell time each",
                seen=f"{len(self.rates)} rates, {len(self.dwell_s)} dwell times",
            )
        if min(self.rates) < 0 or sum(self.rates) <= 0 or min(self.dwell_s) <= 0:
            raise ConfigError(f"{where}: rates must be at least 0 and not all 0, dwell times above 0", seen=self.rates)


def weibull_shape(cv: float) -> float:
    """The shape k whose coefficient of variation is `cv`: cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1, by bisection."""
    low, high = 0.05, 60.0
    for _ in range(80):
        k = math.sqrt(low * high)
        seen = math.exp(math.lgamma(1 + 2 / k) - 2 * math.lgamma(1 + 1 / k)) - 1
        low, high = (k, high) if seen > cv**2 else (low, k)
    return math.sqrt(low * high)


def _positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{where}.{name} must be above 0", seen=value)


def _cumulate(
    quantile: Callable[[Floats], npt.NDArray[Any]],
    first: float | None,
    span_s: float,
    rate: float,
    names: tuple[object, ...],
) -> Floats:
    """Sums of gaps from the first (an ordinary gap if None) until the span is full."""
    if span_s * rate > _MAX_ARRIVALS:
        raise ConfigError(
            "the plan is too big", seen=f"{span_s * rate:.0f} arrivals", expected=f"{_MAX_ARRIVALS} at most"
        )
    num = 64 + math.ceil(1.2 * span_s * rate)
    while True:
        gaps = quantile(uniforms(num, *names, "gap"))
        times = np.cumsum(gaps) if first is None else first + np.concatenate([[0.0], np.cumsum(gaps)])
        if times[-1] >= span_s:
            return np.asarray(times[times < span_s], dtype=np.float64)
        num *= 2
        if num > 4 * _MAX_ARRIVALS:
            raise ConfigError("the arrivals do not fill the span", seen=f"rate {rate}, span {span_s} s", fix="lower cv")


def _warp(grid: Floats, area: Floats, names: tuple[object, ...]) -> Floats:
    """Unit-rate Poisson arrivals mapped from integrated rate `area` to time `grid`. Both rise.  # [num_arrivals]"""
    total = float(area[-1])
    if total <= 0:
        return np.zeros(0)
    unit = Poisson(rate=1.0).times(total, *names)
    times = np.interp(unit, area, grid)
    return np.asarray(times[times < grid[-1]], dtype=np.float64)
