"""Host time to apply a plan and build its tensors, by number of decode rows. No model runs.

    python benchmarks/engine/input_build.py

Prints the median and best microseconds per step, for one KV group and for six (as Gemma 3 has).
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from paceline.contracts.kv import KVGroupSpec, KVLayout, ceil_div
from paceline.contracts.request import SamplingParams
from paceline.contracts.step import NO_FEED, Logits, RowAdmit, StepPlan
from paceline.runtime.input_batch import InputBatch

BLOCK_SIZE = 16


def make_layout(num_groups: int) -> KVLayout:
    windows: list[int | None] = [None, *[512] * (num_groups - 1)]
    groups = tuple(
        KVGroupSpec(
            kind="full" if window is None else "sliding",
            layers=(index,),
            block_size=BLOCK_SIZE,
            bytes_per_block=1024,
            window=window,
        )
        for index, window in enumerate(windows)
    )
    return KVLayout(groups=groups, num_blocks=1 << 20)


def decode_plan(step: int, num_rows: int, start: int, blocks: np.ndarray, admits: tuple[RowAdmit, ...]) -> StepPlan:
    def full(value: int) -> np.ndarray:
        return np.full(num_rows, value, dtype=np.int32)

    empty = np.empty(0, dtype=np.int32)
    return StepPlan(
        step=step,
        releases=empty,
        admits=admits,
        new_block_group=blocks[0],
        new_block_row=blocks[1],
        new_block_index=blocks[2],
        new_block_id=blocks[3],
        copy_src=empty,
        copy_dst=empty,
        row=np.arange(num_rows, dtype=np.int32),
        start=full(start),
        count=full(1),
        num_draft=full(0),
        want_drafts=full(0),
        logits=full(Logits.LAST),
        sample=full(1),
        feed_step=full(NO_FEED),
        draft_ids=empty,
    )


def block_columns(num_groups: int, num_rows: int, first: int, last: int) -> np.ndarray:
    """Columns (group, row, index, id) that give every row its blocks first..last-1; ids are arbitrary."""
    grid = np.meshgrid(np.arange(num_groups), np.arange(num_rows), np.arange(first, last), indexing="ij")
    columns = np.stack([axis.ravel() for axis in grid]).astype(np.int32)
    return np.vstack([columns, (1 + np.arange(columns.shape[1]) % 1000).astype(np.int32)])


def measure(num_groups: int, num_rows: int, context: int, num_steps: int) -> list[float]:
    """Seconds of each step: apply, build and the sampling columns."""
    layout = make_layout(num_groups)
    rows = InputBatch(layout, max_rows=num_rows, max_model_len=8192, device=torch.device("cpu"))
    admits = tuple(
        RowAdmit(
            row=row,
            request_id=row,
            epoch=0,
            choice=0,
            token_ids=np.zeros(context + 1, dtype=np.int32),
            num_prompt=context + 1,
            sampling=SamplingParams(seed=row, temperature=0.0),
        )
        for row in range(num_rows)
    )
    have = ceil_div(context + 1, BLOCK_SIZE)
    blocks = block_columns(num_groups, num_rows, 0, have)
    times = []
    for step in range(num_steps):
        plan = decode_plan(step, num_rows, context + step, blocks, admits if step == 0 else ())
        begin = time.perf_counter()
        rows.apply(plan)
        inputs = rows.build(plan)
        rows.append_one_each(plan.row, np.zeros(num_rows, dtype=np.int32))
        times.append(time.perf_counter() - begin)
        assert len(inputs.input_ids) == num_rows
        need = ceil_div(context + step + 2, BLOCK_SIZE)
        blocks = block_columns(num_groups, num_rows, have, need)
        have = need
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=1000, help="tokens each row starts with")
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'groups':>6} {'rows':>5} {'median us':>10} {'best us':>8}")
    for num_groups in (1, 6):
        for num_rows in (1, 32, 256):
            times = measure(num_groups, num_rows, args.context, args.steps)
            print(f"{num_groups:6} {num_rows:5} {statistics.median(times) * 1e6:10.1f} {min(times) * 1e6:8.1f}")


if __name__ == "__main__":
    main()
