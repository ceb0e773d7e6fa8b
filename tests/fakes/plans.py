"""Plans by hand, for tests of executors without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.contracts.request import SamplingParams
from paceline.contracts.step import NO_FEED, Logits, RowAdmit, StepPlan


def column(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def make_admit(row: int, token_ids: Sequence[int], **fields: Any) -> RowAdmit:
    defaults: dict[str, Any] = {
        "request_id": 100 + row,
        "epoch": 0,
        "choice": 0,
        "num_prompt": len(token_ids),
        "sampling": SamplingParams(temperature=0.0, seed=0),
    }
    return RowAdmit(row=row, token_ids=column(token_ids), **{**defaults, **fields})


def make_plan(
    step: int,
    rows: Sequence[tuple[int, int, int, bool]] = (),
    *,
    admits: Sequence[RowAdmit] = (),
    releases: Sequence[int] = (),
    blocks: Sequence[tuple[int, int, int, int]] = (),
    copies: Sequence[tuple[int, int]] = (),
    drafts: dict[int, Sequence[int]] | None = None,
    want_drafts: int = 0,
    feeds: dict[int, int] | None = None,
) -> StepPlan:
    """`rows` are (row, start, count, sample), `blocks` (group, row, logical index, block id); drafts are in `count`."""
    drafts, feeds = drafts or {}, feeds or {}
    return StepPlan(
        step=step,
        releases=column(releases),
        admits=tuple(admits),
        new_block_group=column([b[0] for b in blocks]),
        new_block_row=column([b[1] for b in blocks]),
        new_block_index=column([b[2] for b in blocks]),
        new_block_id=column([b[3] for b in blocks]),
        copy_src=column([c[0] for c in copies]),
        copy_dst=column([c[1] for c in copies]),
        row=column([r[0] for r in rows]),
        start=column([r[1] for r in rows]),
        count=column([r[2] for r in rows]),
        num_draft=column([len(drafts.get(r[0], ())) for r in rows]),
        want_drafts=column([want_drafts if r[3] else 0 for r in rows]),
        logits=column([Logits.LAST if r[3] else Logits.NONE for r in rows]),
        sample=column([int(r[3]) for r in rows]),
        feed_step=column([feeds.get(r[0], NO_FEED) for r in rows]),
        draft_ids=column([t for r in rows for t in drafts.get(r[0], ())]),
    )
