"""What the requests are: lengths as distributions, a rate, and what a running sequence holds at a random moment.

The one idea of `holding`: whoever looks at a running batch meets long answers more often than short ones, since they
stay longer, and meets each at a random place. A request that makes O tokens behind a prompt of I is seen O times, with
I + 1, I + 2 ... I + O tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from paceline.contracts.kv import KVGroupSpec
from paceline.errors import ConfigError

Floats = npt.NDArray[np.float64]
PLACES = 8  # moments of a request's life that are looked at


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests of one service. Lengths are equally likely values (quantiles of a distribution), in tokens. Compared by
    identity: what follows from one is worked out once."""

    input_tokens: Floats  # [num_inputs]
    output_tokens: Floats  # [num_outputs]
    rate_rps: float | None = None  # requests per second that must be carried; None: as many as can be
    cached_share: float = 0.0  # of prompt tokens, found in the prefix cache
    arrival_cv: float = 1.0  # standard deviation over mean of the gaps between arrivals; Poisson 1
    longest: int = field(init=False)  # tokens of the longest request that is planned for

    def __post_init__(self) -> None:
        for name, lengths in (("input", self.input_tokens), ("output", self.output_tokens)):
            if len(lengths) == 0 or not np.isfinite(lengths).all() or lengths.min() < 1:
                raise ConfigError(f"the {name} lengths are not usable", seen=str(lengths[:4]), expected="1 or more")
        if not 0 <= self.cached_share < 1:
            raise ConfigError("the cached share of prompts is out of range", seen=self.cached_share, expected="0 to 1")
        if self.rate_rps is not None and not 0 < self.rate_rps < float("inf"):
            raise ConfigError("the rate must be above 0", seen=self.rate_rps, expected="requests per second")
        if not 0 <= self.arrival_cv < float("inf"):
            raise ConfigError("the variation of gaps must be 0 or more", seen=self.arrival_cv)
        object.__setattr__(self, "longest", int(np.ceil(self.input_tokens.max() + self.output_tokens.max())))

    @cached_property
    def mean_input(self) -> float:
        return float(self.input_tokens.mean())

    @cached_property
    def mean_output(self) -> float:
        return float(self.output_tokens.mean())

    @cached_property
    def held(self) -> tuple[Floats, Floats]:
        """Lengths of a running sequence at a random moment, rising, and their probabilities."""
        return held_lengths(self)

    @cached_property
    def mean_context(self) -> float:
        """Tokens a running sequence holds at a random moment."""
        lengths, weights = self.held
        return float((lengths * weights).sum())

    def context_quantile(self, share: float) -> float:
        """Tokens that this share of running sequences stay within."""
        lengths, weights = self.held
        at = int(weights.cumsum().searchsorted(share))
        return float(lengths[min(at, len(lengths) - 1)])


def held_lengths(traffic: Traffic) -> tuple[Floats, Floats]:
    """Lengths of a running sequence at a random moment, rising, and their probabilities. Input and output are
    independent."""
    places = (np.arange(PLACES) + 0.5) / PLACES
    lengths = traffic.input_tokens[:, None, None] + traffic.output_tokens[None, :, None] * places
    weights = np.broadcast_to(traffic.output_tokens[None, :, None], lengths.shape)
    order = lengths.ravel().argsort()
    return np.ceil(lengths).ravel()[order], (weights / weights.sum()).ravel()[order]


@dataclass(frozen=True)
class Holding:
    """Blocks that one running sequence holds at a random moment, over all KV groups."""

    mean: float
    sd: float
    skew: float  # third standardised moment
    most: int  # of the longest request


@lru_cache(maxsize=64)
def holding(traffic: Traffic, groups: tuple[KVGroupSpec, ...], chunk_tokens: int) -> Holding:
    """From the length distribution and how a group keeps blocks: all of a sequence, or its window."""
    lengths, weights = traffic.held
    blocks = np.zeros_like(lengths)
    for group in groups:
        held = np.ceil(lengths / group.block_size)
        # What a group never exceeds, whatever the length, as the engine counts it
        blocks += np.minimum(held, group.max_blocks(traffic.longest, chunk_tokens))
    mean = float((blocks * weights).sum())
    sd = float(np.sqrt(((blocks - mean) ** 2 * weights).sum()))
    skew = float((((blocks - mean) / sd) ** 3 * weights).sum()) if sd > 0 else 0.0
    most = sum(group.max_blocks(traffic.longest, chunk_tokens) for group in groups)
    return Holding(mean=mean, sd=sd, skew=skew, most=most)
