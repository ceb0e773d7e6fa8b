"""The largest step a configuration admits, as a plan that can be run to see what it takes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from paceline.contracts.kv import KVLayout, ceil_div
from paceline.contracts.request import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS, SamplingParams
from paceline.contracts.step import NO_FEED, Logits, RowAdmit, StepPlan

# Prime, so that tables of different rows walk through few blocks in different orders: no two rows share a prefix, and
# what the blocks hold does not matter.
NUM_BLOCKS = 61
PROMPT_LOGPROBS = 128  # positions


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest step a configuration admits."""

    max_rows: int
    max_tokens: int  # positions of all rows together
    max_model_len: int  # tokens of one row
    chunk_tokens: int  # most positions of one row
    kv_tokens: int | None = None  # context all rows together can have; None: every row at max_model_len
    logprobs: int = MAX_LOGPROBS  # alternatives a request may ask for, of its prompt and of its output
    logprob_token_ids: int = MAX_LOGPROB_TOKEN_IDS  # and ids by name


def worst_plan(limits: StepLimits, layout: KVLayout) -> StepPlan:
    """The plan, over `layout` with NUM_BLOCKS blocks, of which it uses each for many rows.

    One row computes a full chunk at the end of the longest context and reports prompt log-probabilities (of a few
    positions: their logits are computed in slices, so more of them take time; what is reported of more is in the
    ledger's formula, cost/workspace.py); all others decode in contexts as long as the cache can hold. Each draws with
    filters and reports all that a request may ask for.
    """
    num_rows = min(limits.max_rows, limits.max_tokens)
    chunk = max(1, min(limits.chunk_tokens, limits.max_tokens - num_rows + 1, limits.max_model_len - 1))
    longest = limits.max_model_len - 1  # the last position that can draw a token with room for it
    others = longest if limits.kv_tokens is None else max(1, limits.kv_tokens - longest) // max(1, num_rows - 1)
    ends = [longest] + [max(1, min(longest, others))] * (num_rows - 1)
    starts = [longest - chunk] + [end - 1 for end in ends[1:]]
    sampling = SamplingParams(
        seed=0,
        top_p=0.9,
        logprobs=limits.logprobs,
        prompt_logprobs=limits.logprobs,
        logprob_token_ids=(0,) * limits.logprob_token_ids,
    )
    admits, columns = [], []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        admits.append(
            RowAdmit(
                row=row,
                request_id=row,
                epoch=0,
                choice=0,
                token_ids=np.zeros(end, dtype=np.int32),
                num_prompt=min(end, start + 1 + PROMPT_LOGPROBS),
                sampling=sampling,
            )
        )
        index = np.arange(ceil_div(end, layout.block_size))
        block_ids = 1 + (row + index * (1 + row // NUM_BLOCKS)) % NUM_BLOCKS
        for group in range(len(layout.groups)):
            columns.append(np.stack([np.full_like(index, group), np.full_like(index, row), index, block_ids]))
    blocks = np.concatenate(columns, axis=1).astype(np.int32)

    def column(values: Sequence[int]) -> np.ndarray:
        return np.asarray(values, dtype=np.int32)

    none = column([])
    return StepPlan(
        step=0,
        releases=none,
        admits=tuple(admits),
        new_block_group=blocks[0],
        new_block_row=blocks[1],
        new_block_index=blocks[2],
        new_block_id=blocks[3],
        copy_src=none,
        copy_dst=none,
        row=column(list(range(num_rows))),
        start=column(starts),
        count=column([e - s for s, e in zip(starts, ends, strict=True)]),
        num_draft=column([0] * num_rows),
        want_drafts=column([0] * num_rows),
        logits=column([Logits.ALL] + [Logits.LAST] * (num_rows - 1)),
        sample=column([1] * num_rows),
        feed_step=column([NO_FEED] * num_rows),
        draft_ids=none,
    )
