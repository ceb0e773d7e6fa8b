"""Restore or compute: how much of a prompt's blocks in lower tiers is worth its way to the device.

A prompt's blocks behind the device's own hit lie in tiers, the first so many in one, more in another. Bringing the
first n of them takes until the slowest of their transfers is there; it saves the prefill of their tokens. The n with
the greatest gain is taken, and none where no n gains:

    saves(n) = prefill(from the hit) - prefill(from n blocks behind it)
    takes(n) = max over tiers(wait for the link + latency + bytes / rate), less what is left of the running step
    gain(n)  = saves(n) (1 + rows that run) - takes(n)

A transfer delays the request that wants it, and others by the wait for the link, which they are told of. Prefill also
delays every row that runs: its tokens come in steps that hold the prompt, it stays longer, and so does its KV. So where
nothing runs a restore must be faster than its prefill; where much does, it may be slower. Both are sums of delays of
single requests; what a delay is worth to whom (a first token, a later one) is not weighed.

Within one tier takes(n) is a straight line, and saves(n) grows faster and faster, since later tokens see more: so the
best n is at an end, and only those where the next tier begins are looked at. Pure: prices and times are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from paceline.contracts.ports import CostModel
from paceline.cost import prefill_shape

RestorePolicy: TypeAlias = Literal["priced", "always", "never"]
RESTORE_POLICIES: tuple[RestorePolicy, ...] = get_args(RestorePolicy)


class Offer(NamedTuple):
    """The first `num_blocks` behind the device's hit could be there in `ms`."""

    num_blocks: int
    ms: float


class Choice(NamedTuple):
    num_blocks: int  # to restore; 0: compute them all
    restore_ms: float
    recompute_ms: float  # prefill of the same tokens


NOTHING = Choice(0, 0.0, 0.0)


def choose(
    offers: Sequence[Offer],
    saved_ms: Callable[[int], float],
    policy: RestorePolicy,
    *,
    num_running: int = 0,
    hidden_ms: float = 0.0,
) -> Choice:
    """One of `offers`, which grow, or none; of equal gains the smaller. `saved_ms(n)`: prefill of the first n blocks.
    `num_running`: rows that computing would delay. `hidden_ms`: the device could not begin before that anyway."""
    if not offers or policy == "never":
        return NOTHING
    if policy == "always":
        most = offers[-1]
        return Choice(most.num_blocks, most.ms, saved_ms(most.num_blocks))
    best, most_gained = NOTHING, 0.0
    for offer in offers:
        saved = saved_ms(offer.num_blocks)
        gained = saved * (1 + num_running) - max(0.0, offer.ms - hidden_ms)
        if gained > most_gained:
            best, most_gained = Choice(offer.num_blocks, offer.ms, saved), gained
    return best


def prefill_ms(cost: CostModel, begin: int, end: int, chunk_tokens: int) -> float:
    """Milliseconds of a lone prompt's positions [begin, end), in chunks, with the draw of the token behind it."""
    return sum(
        cost.step_ms(prefill_shape(min(chunk_tokens, end - at), at, sampled=at + chunk_tokens >= end))
        for at in range(begin, end, chunk_tokens)
    )
