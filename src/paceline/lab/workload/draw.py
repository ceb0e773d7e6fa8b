"""Random draws as functions of names: the i-th draw of a purpose is the same however many are drawn after it.

So one request keeps its lengths and its text when the rate, the duration or another stream changes. No generator's
state is shared; no global seed is touched.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

_DECK = 20  # shares are exact over each run of so many requests


def key(*names: object, bits: int = 64) -> int:
    """A number for a list of names and numbers. Each is tagged with its length, so no two lists run together."""
    text = "".join(f"{len(word)}:{word};" for word in map(str, names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=bits // 8).digest(), "big")


def uniforms(num: int, *names: object) -> Floats:
    """The first `num` uniform draws in [0, 1) under these names.  # [num]"""
    return np.random.Generator(np.random.Philox(key=key(*names, bits=128))).random(num)


def small(*names: object) -> random.Random:
    """A small generator for one thing, cheap to make."""
    return random.Random(key(*names))


def deck(num: int, shares: Mapping[str, float], *names: object) -> list[str | None]:
    """Which category each of `num` requests falls into, None for the rest.

    Every run of 20 requests holds its share of each category to within one, in an order of its own: a share of 10 %
    of 100 requests is 10 requests, and they do not come in lock-step.
    """
    dealt: list[str | None] = []
    wanted = {name: share for name, share in shares.items() if share > 0}
    if not wanted:
        return [None] * num
    offsets = {name: small(*names, "offset", name).random() for name in wanted}
    for block in range(math.ceil(num / _DECK)):
        cards: list[str | None] = []
        for name, share in wanted.items():
            before = math.floor(block * _DECK * share + offsets[name])
            cards += [name] * (math.floor((block + 1) * _DECK * share + offsets[name]) - before)
        cards = cards[:_DECK] + [None] * (_DECK - len(cards))
        small(*names, "block", block).shuffle(cards)
        dealt += cards
    return dealt[:num]


def zipf_weights(num: int, exponent: float) -> Floats:
    """Popularity of `num` things, most popular first: the k-th falls as k ** -exponent; 0 is uniform.  # [num]"""
    weights = np.arange(1, num + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def pick(weights: Floats, draws: Floats) -> npt.NDArray[np.int64]:
    """The index that each uniform draw falls on.  # [num_draws]"""
    edges = np.cumsum(weights)
    return np.minimum(np.searchsorted(edges / edges[-1], draws, side="right"), len(weights) - 1)
