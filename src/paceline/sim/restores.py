"""Restore or compute: how much of a prompt's blocks in lower tiers is worth its way to the device.

A prompt's blocks behind the device's own hit lie in tiers, the first so many in one, more in another. Bringing the
first n of them takes until the slowest of their transfers is there; it saves the prefill of their tokens. The n with
the greatest gain is taken, and none where no n gains:

    gain(n) = prefill(from the hit) - prefill(from n blocks behind it)
              - max over tiers(wait for the link + latency + bytes / rate), less what is left of the running step

Within one tier the cost is a straight line in n, and what is saved grows faster and faster with n, since later tokens
see more: so the best n is at an end, and only those where the next tier begins are looked at.

Pure: no clock, no state; prices and times are passed in. What it weighs is one request's time, as if no other prompt
waited. Where prompts queue, a transfer hides behind the queue, and computing delays those who stand in it: a restore
that is slower than its prefill may then still pay, and is not taken.
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
    offers: Sequence[Offer], saved_ms: Callable[[int], float], policy: RestorePolicy, *, hidden_ms: float = 0.0
) -> Choice:
    """One of `offers`, which grow, or none; of equal gains the smaller. `saved_ms(n)`: prefill of the first n blocks.
    `hidden_ms`: the request could not begin before that anyway."""
    if not offers or policy == "never":
        return NOTHING
    if policy == "always":
        most = offers[-1]
        return Choice(most.num_blocks, most.ms, saved_ms(most.num_blocks))
    best, most_gained = NOTHING, 0.0
    for offer in offers:
        saved = saved_ms(offer.num_blocks)
        gained = saved - max(0.0, offer.ms - hidden_ms)
        if gained > most_gained:
            best, most_gained = Choice(offer.num_blocks, offer.ms, saved), gained
    return best


def prefill_ms(cost: CostModel, begin: int, end: int, chunk_tokens: int) -> float:
    """Milliseconds of a lone prompt's positions [begin, end), in chunks, with the draw of the token behind it."""
    return sum(
        cost.step_ms(prefill_shape(min(chunk_tokens, end - at), at, sampled=at + chunk_tokens >= end))
        for at in range(begin, end, chunk_tokens)
    )
