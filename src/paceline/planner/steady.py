"""A replica in a steady state: from the mean number of running rows to rate, TTFT, TPOT and attainment.

With b rows on average, a request meets itself and b others (Poisson arrivals see time averages). I and O are mean input
and output, c the tokens of a chunk, s the places where prompts are computed:

    f    = b I / (O c s)                         share of steps that carry a chunk
    tau  = f mixed + (1 - f) decode              mean step, hence TPOT
    rate = b / (O tau)                           Little's law
    S(i) = i / c steps that carry a chunk        service time of a prompt of i tokens
    W    = f / (1 - f) E[S] (ca^2 + cs^2) / 2 s  wait before a prompt's turn (Kingman), exponential given any wait

Mixed and decode-only steps and their weights are those of AIConfigurator's aggregated estimate; J. F. C. Kingman, "The
single server queue in heavy traffic", Proc. Cambridge Phil. Soc. 57, 1961. Attainment is the product of three chances:
TTFT within its target over all prompt lengths; no more rows than TPOT allows; a free place for a row. Rows vary as
Poisson counts do, by their square root.

Not covered: what the order of requests changes, percentiles of TPOT within one request, preemption. A simulator has
these; this finds what is worth simulating.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

import msgspec
import numpy as np

from paceline.contracts.workload import SloClass
from paceline.planner.step import LayoutSteps
from paceline.planner.traffic import Floats, Traffic

FULLEST = 0.98  # a chunk in more of the steps than that: no steady state
LEAST_ROWS = 1e-3  # a load below that is none
TOLERANCE = 5e-4  # of rows, relative
GRID = sorted({n * m // 2 for n in (1 << k for k in range(1, 14)) for m in (1, 2, 3)} - {0})  # 1, 2, 3, 4, 6, 8, 12 ...


class Operating(msgspec.Struct, frozen=True, kw_only=True):
    """One replica at one load."""

    rows: float  # running on average, prompts being computed not counted
    rate_rps: float
    step_ms: float  # mean; TPOT
    prefill_share: float  # of steps that carry a chunk
    ttft_p50_s: float
    ttft_p95_s: float
    attainment: float  # share of requests that meet every target
    ttft_met: float
    tpot_met: float
    seated: float

    @property
    def goodput_rps(self) -> float:
        return self.rate_rps * self.attainment

    @property
    def tpot_s(self) -> float:
        return self.step_ms / 1e3


class Replica:
    """One engine under one traffic. `seats`: rows it may run at once. `chunk`: most prompt tokens of a step."""

    def __init__(self, steps: LayoutSteps, traffic: Traffic, slo: SloClass, *, seats: int, chunk: int) -> None:
        self.steps, self.traffic, self.slo, self.seats = steps, traffic, slo, seats
        self.context = round(traffic.mean_context)
        self.prompts: Floats = traffic.input_tokens * (1 - traffic.cached_share)  # tokens really computed
        self.behind = traffic.mean_input * traffic.cached_share
        self.chunk = chunk
        self._mean_prompt = float(self.prompts.mean())
        self._longest_prompt = float(self.prompts.max())
        # What a chunk is behind, on average over chunks
        self._middle = self.behind + float((self.prompts**2).sum() / self.prompts.sum()) / 2
        self._rows_for_tpot = self._most_rows()

    def at_rows(self, rows: float, *, quantiles: bool = True) -> Operating | None:
        """None: prompts alone would take more steps than there are. Without `quantiles` those of TTFT are nan."""
        seen = rows + 1
        decode = self._between(seen, self._decode)
        near = self._between(seen, lambda n: self._mixed(n, self.behind))
        depth = self._longest_prompt / 2
        far = self._between(seen, lambda n: self._mixed(n, self.behind + depth))
        per_chunk = near + (far - near) * self.prompts / (2 * depth)  # [num_inputs]
        chunks = self.prompts / self.chunk
        # A prompt below one chunk takes a part of one; others fill the rest
        served = np.where(chunks < 1, decode + (near - decode) * chunks, chunks * per_chunk)
        share = rows * self._mean_prompt / (self.traffic.mean_output * self.chunk * self.steps.num_servers)
        if share > FULLEST:
            return None
        mixed = float((chunks * per_chunk).sum() / chunks.sum())
        step = share * mixed + (1 - share) * decode
        rate = 1e3 * rows / (self.traffic.mean_output * step)
        wait = self._wait_ms(share, served)
        busy = rows + rate * float(served.mean()) / 1e3
        ttft = self.slo.ttft_s
        met = 1.0 if ttft is None else _ttft_cdf(1e3 * ttft, served, step / 2, share, wait)
        tpot = 1.0 if self.slo.tpot_s is None else _at_most(self._rows_for_tpot - 1, rows)
        seated = _at_most(self.seats, busy)
        return Operating(
            rows=rows,
            rate_rps=rate,
            step_ms=step,
            prefill_share=share,
            ttft_p50_s=_ttft_quantile(0.5, served, step / 2, share, wait) / 1e3 if quantiles else math.nan,
            ttft_p95_s=_ttft_quantile(0.95, served, step / 2, share, wait) / 1e3 if quantiles else math.nan,
            attainment=met * tpot * seated,
            ttft_met=met,
            tpot_met=tpot,
            seated=seated,
        )

    def at_rate(self, rate_rps: float) -> Operating | None:
        """None: more than it can carry, good or not."""
        top, alone = self._fullest(float(self.seats)), self.at_rows(0.0, quantiles=False)
        if top is None or alone is None or top.rate_rps < rate_rps:
            return None

        def below(rows: float) -> bool:
            found = self.at_rows(rows, quantiles=False)
            return found is not None and found.rate_rps < rate_rps

        # By Little's law with the shortest step there is, and half of it for steps that are not quite monotone
        least = rate_rps * self.traffic.mean_output * alone.step_ms / 2e3
        return self.at_rows(_bisect(below, min(least, top.rows), top.rows)[1])

    def capacity(self) -> Operating | None:
        """The highest load at which the share of requests that the class asks for meets every target; None: none."""

        def good(rows: float) -> bool:
            found = self.at_rows(rows, quantiles=False)
            return found is not None and found.attainment >= self.slo.share

        if not good(LEAST_ROWS):
            return None
        return self.at_rows(_bisect(good, LEAST_ROWS, float(self.seats))[0])

    # --- parts

    def _decode(self, rows: int) -> float:
        return self.steps.decode_ms(rows, self.context)

    def _mixed(self, rows: int, cached: float) -> float:
        return self.steps.mixed_ms(rows, self.context, self.chunk, round(cached))

    def _between(self, rows: float, cost: Callable[[int], float]) -> float:
        """A cost at a mean number of rows, on straight lines between powers of two and the middles of those."""
        at = bisect_right(GRID, max(1.0, rows)) - 1
        below = GRID[at]
        if rows <= below:
            return cost(below)
        above = GRID[at + 1]
        part = (rows - below) / (above - below)
        return (1 - part) * cost(below) + part * cost(above)

    def _wait_ms(self, share: float, served: Floats) -> float:
        mean = float(served.mean())
        variation = float(served.var()) / mean**2 + self.traffic.arrival_cv**2
        return share / (1 - share) * mean * variation / 2 / self.steps.num_servers

    def _most_rows(self) -> int:
        """Rows whose mean step stays within the TPOT target; 0: not even one."""
        if self.slo.tpot_s is None:
            return self.seats + 1
        low, high, limit = 0, self.seats + 1, 1e3 * self.slo.tpot_s
        while low < high:
            middle = (low + high + 1) // 2
            if self._mean_step(middle) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _mean_step(self, rows: int) -> float:
        share = rows * self._mean_prompt / (self.traffic.mean_output * self.chunk * self.steps.num_servers)
        share = min(share, 1.0)
        mixed = self._between(rows, lambda n: self._mixed(n, self._middle))
        return share * mixed + (1 - share) * self._between(rows, self._decode)

    def _fullest(self, rows: float) -> Operating | None:
        """The most loaded steady state with at most `rows`."""
        full = FULLEST * self.traffic.mean_output * self.chunk * self.steps.num_servers / self._mean_prompt
        return self.at_rows(min(rows, full * (1 - 1e-9)), quantiles=False)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """The two ends of where `holds` turns false, `TOLERANCE` of each other apart: between positive numbers, on their
    logarithm, so that a small load is found as well as a large one. It holds at `low`."""
    while high > low * (1 + TOLERANCE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _at_most(limit: float, mean: float) -> float:
    """Chance that a Poisson count stays within `limit`, by the normal law with a half step more."""
    if mean <= 0:
        return 1.0 if limit >= 0 else 0.0
    return 0.5 * math.erfc(-(limit + 0.5 - mean) / math.sqrt(2 * mean))


def _ttft_cdf(ms: float, served: Floats, offset: float, share: float, wait: float) -> float:
    """Chance that wait and service end within `ms`, over all prompt lengths."""
    left = ms - offset - served
    if wait <= 0:
        return float((left >= 0).mean())
    waits_longer = share * np.exp(-np.maximum(left, 0.0) * share / wait)
    return float(np.where(left >= 0, 1 - waits_longer, 0.0).mean())


def _ttft_quantile(q: float, served: Floats, offset: float, share: float, wait: float) -> float:
    low, high = 0.0, offset + float(served.max()) + 50 * wait + 1.0
    for _ in range(30):
        middle = (low + high) / 2
        if _ttft_cdf(middle, served, offset, share, wait) >= q:
            high = middle
        else:
            low = middle
    return high
