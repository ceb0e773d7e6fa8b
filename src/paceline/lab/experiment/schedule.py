"""In which order nodes are visited, and with which seeds. Pure.

ABBA: the nodes in their order, then backwards, and so on. A drift of the machine that is linear in time then hits all
nodes alike as soon as the number of repeats is even. Every node of a repeat has the same seed, so its plan is the same
in each, and requests pair by their ids; another repeat has another seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One node for a while, its server started anew."""

    node: str
    repeat: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a visit."""

    id: str
    node: str
    repeat: int
    rate_rps: float | None
    seed: int
    purpose: str = "compare"


def visits(nodes: Sequence[str], repeats: int, order: str, seed: int) -> list[Visit]:
    """`order`: ABBA turns round at each repeat, AB does not, random shuffles within each repeat."""
    found = []
    for repeat in range(repeats):
        names = list(nodes)
        if order == "ABBA" and repeat % 2:
            names.reverse()
        if order == "random":
            random.Random(f"{seed} order {repeat}").shuffle(names)
        found += [Visit(node=name, repeat=repeat) for name in names]
    return found


def points_of(visit: Visit, rates: Sequence[float], seed: int) -> list[Point]:
    """The points of a visit: one for each rate, or one at the workload's own. Rates turn round with the repeats too."""
    wanted: list[float | None] = list(rates) or [None]
    if visit.repeat % 2:
        wanted.reverse()
    return [
        Point(
            id=point_id(visit.node, visit.repeat, rate),
            node=visit.node,
            repeat=visit.repeat,
            rate_rps=rate,
            seed=repeat_seed(seed, visit.repeat),
        )
        for rate in wanted
    ]


def search_point(node: str, rate: float, repeat: int, seed: int) -> Point:
    """The `repeat`-th measurement of a node at a rate the search asked for; other nodes at that rate have its seed."""
    return Point(
        id=point_id(node, repeat, rate, "search"),
        node=node,
        repeat=repeat,
        rate_rps=rate,
        seed=repeat_seed(seed, repeat),
        purpose="search",
    )


def repeat_seed(seed: int, repeat: int) -> int:
    return seed * 1_000_003 + repeat


def point_id(node: str, repeat: int, rate: float | None, purpose: str = "rep") -> str:
    return f"{node}/{purpose}{repeat}" + ("" if rate is None else f"-{rate:g}rps")


def imbalance(repeats: int, order: str, num_nodes: int) -> str:
    """Why the order does not protect from drift; "" when it does."""
    if num_nodes < 2 or order == "random":
        return ""
    if order == "AB":
        return "order AB: a drift of the machine is not told from a difference of the nodes"
    if repeats % 2:
        return f"{repeats} repeats of ABBA are not balanced: a drift of the machine counts for the last nodes"
    return ""
