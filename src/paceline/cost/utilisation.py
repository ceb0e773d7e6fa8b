"""How much of a device's rate a piece of work reaches, by the shape of the work: never one constant.

The share is interpolated, not the time: it stays between 0 and 1 and changes slowly, while times span decades.

Matrix products: the share of `max(operations / rate, bytes / bandwidth)` that is reached, by positions and by how much
of a layer one rank holds. The GPU's numbers are those of an up-projection of a model of 7 G weights on an H100, whole
and divided by 8, worked out of the tables that the Vidur simulator ships (MIT licence): there is a cliff near 256
positions, where tiles of the product no longer fit the problem. The CPU's are products of this package's own kernels
(docs/lab-log.md) over what the probe measures.

Attention and reading a cache: judgements, to be replaced by what steps teach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import log2
from typing import Literal

Kind = Literal["cpu", "cuda"]
Curve = Sequence[tuple[float, float]]  # (amount, share), amounts rising

PRODUCTS: dict[Kind, tuple[Curve, Curve]] = {  # a whole layer, and a small part of one
    "cpu": (
        ((1, 0.55), (4, 0.75), (8, 0.85), (64, 0.9)),
        ((1, 0.55), (4, 0.75), (8, 0.85), (64, 0.9)),
    ),
    "cuda": (
        ((8, 0.84), (128, 0.79), (256, 0.45), (512, 0.70), (4096, 0.76)),
        ((8, 0.56), (128, 0.50), (256, 0.39), (512, 0.58), (4096, 0.71)),
    ),
}
WHOLE_LAYER, SMALL_PART = 200e6, 25e6  # weights of one layer that one rank holds, where the two curves apply
ATTENTION: dict[Kind, Curve] = {  # of arithmetic, by queries per row
    "cpu": ((1, 0.2), (16, 0.4), (128, 0.6)),
    "cuda": ((1, 0.05), (64, 0.25), (512, 0.45), (4096, 0.6)),
}
CACHE_READ: dict[Kind, float] = {"cpu": 0.5, "cuda": 0.7}  # of bandwidth, reading K and V through block tables
ELEMENTWISE = 0.8  # of bandwidth: norms, residuals, activations


def share(curve: Curve, amount: float) -> float:
    """The curve at `amount`, on straight lines over the logarithm of amounts; level beyond its ends."""
    if amount <= curve[0][0]:
        return curve[0][1]
    if amount >= curve[-1][0]:
        return curve[-1][1]
    at = bisect_right(curve, amount, key=lambda point: point[0])
    (low, under), (high, over) = curve[at - 1], curve[at]
    part = (log2(amount) - log2(low)) / (log2(high) - log2(low))
    return under + part * (over - under)


@lru_cache(maxsize=1 << 14)  # asked again and again at the bends of its curve
def product_share(kind: Kind, num_tokens: float, num_weights: float) -> float:
    """What products of `num_tokens` rows reach on a rank that holds `num_weights` of each layer."""
    whole, small = (share(curve, num_tokens) for curve in PRODUCTS[kind])
    span = log2(WHOLE_LAYER / SMALL_PART)
    smallness = log2(WHOLE_LAYER / max(num_weights, 1.0)) / span
    return whole + min(max(smallness, 0.0), 1.0) * (small - whole)


def cliffs(kind: Kind) -> list[float]:
    """Amounts at which a product's curve bends: a step must not get shorter by more rows beyond one."""
    return [amount for amount, _ in PRODUCTS[kind][0]]
