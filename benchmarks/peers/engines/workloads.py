"""The loads every engine gets, as token ids: W1 to W4 all at once, W5 at arrival times. No engine, no clock.

Prompts are pieces of one text, begun at places drawn from (seed, load, round, number): the same for all engines, new in
every round, so that no prefix is cached but the one that a load shares on purpose.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """`num_prompts` prompts of `num_in` tokens at once, the first `num_shared` alike, `num_out` tokens out of each."""

    name: str
    num_prompts: int
    num_in: int
    num_out: int
    num_shared: int = 0

    @property
    def words(self) -> str:
        shared = f", {self.num_shared} shared" if self.num_shared else ""
        return f"{self.num_prompts} x {self.num_in} in{shared}, {self.num_out} out"


@dataclass(frozen=True)
class Call:
    """One generation of a load's round."""

    prompts: list[list[int]]
    num_out: int


@dataclass(frozen=True)
class Arrival:
    at_s: float
    ids: list[int]
    num_out: int


FULL = {
    load.name: load
    for load in (
        Load("W1", 1, 128, 128),
        Load("W2", 1, 2048, 1),
        Load("W3", 64, 256, 128),
        Load("W4", 32, 1088, 32, num_shared=1024),
    )
}
QUICK = FULL | {load.name: load for load in (Load("W3", 16, 256, 32), Load("W4", 8, 576, 16, num_shared=512))}
UNIT = {"W1": "tok/s", "W2": "tok/s", "W3": "tok/s", "W4": "s"}


def cut(text: Sequence[int], num_tokens: int, rng: random.Random) -> list[int]:
    if len(text) <= num_tokens:
        raise ValueError(f"the text has {len(text)} tokens, {num_tokens} are wanted")
    begin = rng.randrange(len(text) - num_tokens)
    return list(text[begin : begin + num_tokens])


def calls(load: Load, round_: int, text: Sequence[int], seed: int = 0) -> list[Call]:
    """What one round of a load asks for, in order. A single stream is asked for one token first, of another prompt: the
    difference of both is decoding alone."""
    rng = random.Random(f"{seed}/{load.name}/{round_}")

    def prompts() -> list[list[int]]:
        shared = cut(text, load.num_shared, rng) if load.num_shared else []
        return [shared + cut(text, load.num_in - load.num_shared, rng) for _ in range(load.num_prompts)]

    if load.name == "W1":
        return [Call(prompts(), 1), Call(prompts(), load.num_out)]
    return [Call(prompts(), load.num_out)]


def figure(load: Load, seconds: Sequence[float]) -> float:
    """The load's figure from the seconds of its calls."""
    if load.name == "W1":
        first, whole = seconds
        return figure_of(load, max(whole - first, 1e-9))
    (total,) = seconds
    return figure_of(load, total)


def figure_of(load: Load, seconds: float) -> float:
    """From the seconds of what counts: W1 decoded tokens/s, W2 prompt tokens/s, W3 output tokens/s, W4 seconds."""
    tokens = {"W1": load.num_out - 1, "W2": load.num_in, "W3": load.num_prompts * load.num_out}
    return tokens[load.name] / seconds if load.name in tokens else seconds


def seconds_of(load: Load, value: float) -> float:
    """The inverse."""
    return figure_of(load, value)


def speed(name: str, value: float) -> float:
    """Larger is better, whatever the unit: ratios are of this."""
    return 1 / value if UNIT[name] == "s" else value


def arrivals(rate: float, count: int, text: Sequence[int], seed: int = 0) -> list[Arrival]:
    """W5: Poisson arrivals at `rate` requests/s, 64 to 1,024 tokens in and 16 to 256 out, both log-uniform."""
    rng = random.Random(f"{seed}/W5/{rate:g}")
    at_s, found = 0.0, []

    def length(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    for _ in range(count):
        at_s += rng.expovariate(rate)
        found.append(Arrival(at_s, cut(text, length(64, 1024), rng), length(16, 256)))
    return found
