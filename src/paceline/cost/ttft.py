"""When a request that comes now would get its first token: pure, for admission and for routers.

The engine computes prompts in order, as much of them in a step as its budget leaves beside the decoding rows. So the
first token comes after the prompts ahead and the own one are worked off in such steps, each at its price, behind what
is left of the running step; and, when all rows are taken, after rows have ended.

Not seen: preemption, prefixes that will be found by then, requests of a higher class that come later.
"""

from __future__ import annotations

from math import ceil
from typing import Protocol

from paceline.contracts.ports import EngineSnapshot, StepShape, joined, prefill_shape
from paceline.cost.estimate import Estimate
from paceline.cost.features import decode_shape


class Estimates(Protocol):
    """Whoever prices a step with an interval."""

    def estimate(self, shape: StepShape) -> Estimate: ...


def predict_ttft(cost: Estimates, snapshot: EngineSnapshot, num_prompt: int, num_cached: int = 0) -> Estimate:
    """Milliseconds from now to the first token of a prompt of `num_prompt` tokens, `num_cached` of them in the cache.

    A request behind others shares its steps with them; all steps are priced as one from the middle of its prompt.
    """
    s = snapshot
    decodes = decode_shape(s.num_decoding, s.decode_context_tokens // max(1, s.num_decoding))
    own = max(1, num_prompt - num_cached)
    left = max(s.max_num_batched_tokens - s.num_decoding, s.min_prefill_tokens, 1)
    work = s.prefill_tokens_ahead + own
    chunk = min(left, work)
    if s.prefill_chunk_tokens is not None and not s.num_ahead:
        chunk = min(chunk, s.prefill_chunk_tokens)
    steps = ceil(work / chunk)
    size = ceil(work / steps)
    per_step = prefill_shape(size, num_cached + max(0, own - size) // 2)
    first = cost.estimate(joined(decodes, per_step))
    value, lo, hi = (s.ms_left_in_step + steps * ms for ms in (first.value, first.lo, first.hi))
    why = f"{steps} steps for {s.prefill_tokens_ahead} positions ahead and {own} of its own; {first.why}"
    short = s.num_decoding + s.num_ahead + 1 - s.max_num_seqs
    if short > 0 and s.mean_tokens_left > 0:  # rows end one after another, evenly over what is left
        wait = cost.estimate(decodes).times(s.mean_tokens_left * min(1.0, short / max(1, s.num_decoding)))
        value, lo, hi = value + wait.value, lo, hi + 2 * wait.hi  # nobody knows when answers end
        why = f"waits for {short} rows; {why}"
    return Estimate(value=value, lo=min(lo, value), hi=max(hi, value), tier=first.tier, why=why)
