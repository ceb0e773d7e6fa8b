"""Attention over the ranks of context parallelism: what each has to do, and what must move.

Each of n ranks has a n-th of a step's positions and of every sequence's cache; what it multiplies with, it has whole.
For attention one of the two goes round a ring, n - 1 times from each rank to the next, while the ranks work on what
they have:

    keys      w / n + (n - 1) max(w / n, hop)              hop: a n-th of the keys and values that attention reads
    queries   the same with hop: a n-th of the queries, and then (n - 1) / n of all outputs back to their ranks

with w the attention work of one rank, a n-th of all. The shorter is taken: a long prompt moves keys, a decode step its
few queries. The softmax parts that join partial outputs are not counted.

A causal prompt cut into n runs in order would leave the last rank with up to twice the mean. Cut into 2 n, with runs i
and 2 n - 1 - i on rank i (zig-zag), all have the same; that is what is priced.

Sources: H. Liu, M. Zaharia, P. Abbeel, "Ring Attention", arXiv 2310.01889; A. Yang et al., "Context Parallelism for
Scalable Million-Token Inference", arXiv 2411.01783, for both directions and the zig-zag.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from paceline.cost.transfer import Link


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What attention of one layer is about, over all ranks, in bytes."""

    keys: float  # keys and values of the cache and of the step, as far as they are read
    queries: float
    outputs: float


def attention_ms(work_ms: float, num_ranks: int, link: Link, moved: Moved) -> float:
    """One layer's attention. `work_ms`: of one rank, were everything there."""
    if num_ranks == 1:
        return work_ms
    back = link.ms(moved.outputs * (num_ranks - 1) / num_ranks)
    keys = ring_ms(work_ms, num_ranks, link.ms(moved.keys / num_ranks))
    queries = ring_ms(work_ms, num_ranks, link.ms(moved.queries / num_ranks)) + back
    return min(keys, queries)


def ring_ms(work_ms: float, num_ranks: int, hop_ms: float) -> float:
    """Work in as many parts as there are ranks, each but the first when what it is on has come."""
    part = work_ms / num_ranks
    return part + (num_ranks - 1) * max(part, hop_ms)


def rank_pairs(num_tokens: int, num_cached: int, num_ranks: int, *, zigzag: bool = True) -> list[int]:
    """Query-key pairs of each rank, for a causal prompt of `num_tokens` behind `num_cached`. [num_ranks]"""
    runs = 2 * num_ranks if zigzag else num_ranks
    ends = [num_tokens * at // runs for at in range(runs + 1)]
    pairs = [(b - a) * num_cached + (b * (b + 1) - a * (a + 1)) // 2 for a, b in pairwise(ends)]
    if not zigzag:
        return pairs
    return [pairs[rank] + pairs[runs - 1 - rank] for rank in range(num_ranks)]
