from __future__ import annotations

import numpy as np
import torch
from tests.fakes.builders import make_layout
from tests.fakes.plans import make_admit, make_plan

from paceline.contracts.request import SamplingParams
from paceline.contracts.step import StepPlan, decode, encode
from paceline.runtime.input_batch import InputBatch


def make_rows(windows: tuple[int | None, ...] = (None,), block_size: int = 4, max_rows: int = 4) -> InputBatch:
    layout = make_layout(64, block_size, windows)
    return InputBatch(layout, max_rows=max_rows, max_model_len=32, device=torch.device("cpu"))


def test_prefill_decode_and_drafts_are_packed_in_plan_order() -> None:
    rows = make_rows()
    plan = make_plan(
        1,
        [(2, 5, 1, True), (0, 2, 3, False), (1, 1, 4, True)],
        admits=[
            make_admit(0, [10, 11, 12, 13, 14, 15, 16]),
            make_admit(1, [20, 21, 22], num_prompt=1),
            make_admit(2, [30, 31, 32, 33, 34, 35]),
        ],
        blocks=[(0, 0, 0, 5), (0, 0, 1, 6), (0, 1, 0, 7), (0, 1, 1, 8), (0, 2, 0, 9), (0, 2, 1, 3)],
        drafts={1: [40, 41]},
    )
    rows.apply(plan)
    inputs = rows.build(plan)
    assert inputs.input_ids.tolist() == [35, 12, 13, 14, 21, 22, 40, 41]
    assert inputs.positions.tolist() == [5, 2, 3, 4, 1, 2, 3, 4]
    meta = inputs.attention
    assert meta.query_start_loc.tolist() == [0, 1, 4, 8]
    assert meta.seq_lens.tolist() == [6, 5, 5]
    assert (meta.query_lens.tolist(), meta.context_lens.tolist()) == ([1, 3, 4], [5, 2, 1])
    (group,) = meta.groups
    assert group.block_tables.tolist() == [[9, 3], [5, 6], [7, 8]]
    assert group.slot_mapping.tolist() == [
        3 * 4 + 1,
        5 * 4 + 2,
        5 * 4 + 3,
        6 * 4,
        7 * 4 + 1,
        7 * 4 + 2,
        7 * 4 + 3,
        8 * 4,
    ]
    assert [t.dtype for t in (inputs.input_ids, inputs.positions, group.slot_mapping)] == [torch.int64] * 3
    assert [t.dtype for t in (meta.query_start_loc, meta.seq_lens, group.block_tables)] == [torch.int32] * 3
    assert inputs.draw_at.tolist() == [0, 5, 6, 7]
    assert inputs.draw_row.tolist() == [2, 1, 1, 1]
    assert inputs.draw_position.tolist() == [0, 2, 3, 4]
    assert inputs.num_draws.tolist() == [1, 3]


def test_the_decode_step_matches_the_general_way() -> None:
    rows = make_rows((None, 6), max_rows=3)
    admits = [make_admit(r, list(range(10 * r, 10 * r + 5 + r))) for r in range(3)]
    blocks = [(g, r, i, 1 + g * 12 + r * 4 + i) for g in range(2) for r in range(3) for i in range(3)]
    rows.apply(make_plan(0, admits=admits, blocks=blocks))
    together = make_plan(1, [(r, 4 + r, 1, True) for r in range(3)])
    got = rows.build(together)
    for r in range(3):
        alone = rows.build(make_plan(1, [(r, 3 + r, 2, True)]))  # two positions: the general way
        assert got.input_ids[r] == alone.input_ids[1]
        assert got.positions[r] == alone.positions[1]
        for mine, theirs in zip(got.attention.groups, alone.attention.groups, strict=True):
            assert mine.slot_mapping[r] == theirs.slot_mapping[1]
            width = theirs.block_tables.shape[1]
            assert mine.block_tables[r, :width].tolist() == theirs.block_tables[0].tolist()
    assert got.draw_at.tolist() == [0, 1, 2]


def test_what_a_window_no_longer_shows_points_at_the_null_block() -> None:
    rows = make_rows((None, 6))
    ids = list(range(24))
    blocks = [(g, 0, i, 1 + g * 10 + i) for g in range(2) for i in range(6)]
    rows.apply(make_plan(0, admits=[make_admit(0, ids)], blocks=blocks))
    for start, count in ((0, 4), (4, 5), (9, 1), (10, 4), (14, 10)):
        inputs = rows.build(make_plan(1, [(0, start, count, False)]))
        full, sliding = (g.block_tables[0].tolist() for g in inputs.attention.groups)
        width = -(-(start + count) // 4)
        first = max(0, start - 6 + 1) // 4
        assert full == [1 + i for i in range(width)]
        assert sliding == [0] * first + [11 + i for i in range(first, width)]


def test_a_row_forgets_what_it_held_when_another_request_takes_it() -> None:
    rows = make_rows((None, 6))
    sampling = SamplingParams(seed=1, temperature=1.0, top_k=7, repetition_penalty=1.2)
    blocks = [(g, 0, i, 1 + g * 10 + i) for g in range(2) for i in range(5)]
    rows.apply(make_plan(0, admits=[make_admit(0, list(range(20)), sampling=sampling)], blocks=blocks))
    rows.build(make_plan(1, [(0, 19, 1, True)]))
    rows.apply(make_plan(2, releases=[0]))
    assert not rows.rules
    assert not rows.admits
    plan = make_plan(3, [(0, 0, 2, True)], admits=[make_admit(0, [5, 6])], blocks=[(0, 0, 0, 30), (1, 0, 0, 31)])
    rows.apply(plan)
    assert rows.tables[:, 0].tolist() == [[30] + [0] * 7, [31] + [0] * 7]
    inputs = rows.build(plan)
    assert inputs.input_ids.tolist() == [5, 6]
    draws = rows.draws(inputs)
    assert draws.greedy.tolist() == [True]
    assert draws.top_k.tolist() == [0]


def test_appended_tokens_are_the_next_inputs() -> None:
    rows = make_rows()
    rows.apply(make_plan(0, admits=[make_admit(0, [1, 2]), make_admit(1, [3])], blocks=[(0, 0, 0, 1), (0, 1, 0, 2)]))
    rows.append(0, [7, 8, 9])
    rows.append_one_each(np.asarray([1], np.int32), np.asarray([4], np.int32))
    inputs = rows.build(make_plan(1, [(0, 2, 3, True), (1, 1, 1, True)]))
    assert inputs.input_ids.tolist() == [7, 8, 9, 4]
    assert inputs.draw_position.tolist() == [3, 1]


def test_a_decoded_plan_with_read_only_arrays_works() -> None:
    rows = make_rows()
    plan = make_plan(0, [(0, 0, 3, True)], admits=[make_admit(0, [1, 2, 3])], blocks=[(0, 0, 0, 1)])
    again = decode(encode(plan), StepPlan)
    rows.apply(again)
    assert rows.build(again).input_ids.tolist() == [1, 2, 3]


def test_steps_of_one_position_a_row_whatever_rows_and_lengths_come_and_go() -> None:
    rng = np.random.default_rng(0)
    rows = make_rows((None, 6))
    prompts = [3, 9, 14, 1]
    admits = [make_admit(r, rng.integers(0, 50, 30).tolist(), num_prompt=prompts[r]) for r in range(4)]
    blocks = [(g, r, i, 1 + g * 32 + r * 8 + i) for g in range(2) for r in range(4) for i in range(8)]
    rows.apply(make_plan(0, admits=admits, blocks=blocks))
    at = [12, 3, 3, 20]
    for step in range(30):
        members = rng.permutation(4)[: rng.integers(1, 5)].tolist()
        draws = [bool(rng.random() < 0.7) for _ in members]
        inputs = rows.build(make_plan(step, [(r, at[r], 1, d) for r, d in zip(members, draws, strict=True)]))
        starts = [at[r] for r in members]
        assert inputs.input_ids.tolist() == [int(admits[r].token_ids[at[r]]) for r in members]
        assert inputs.positions.tolist() == inputs.attention.context_lens.tolist() == starts
        assert inputs.attention.seq_lens.tolist() == [start + 1 for start in starts]
        assert inputs.attention.query_lens.tolist() == [1] * len(members)
        assert inputs.attention.query_start_loc.tolist() == inputs.first.tolist() == list(range(len(members) + 1))
        for g, group in enumerate(inputs.attention.groups):
            ids = [[1 + g * 32 + r * 8 + i for i in range(8)] for r in members]
            assert group.slot_mapping.tolist() == [ids[k][s // 4] * 4 + s % 4 for k, s in enumerate(starts)]
            behind = [0 if g == 0 else max(0, start - 6 + 1) // 4 for start in starts]
            width = max(starts) // 4 + 1
            assert group.block_tables.tolist() == [[0] * b + row[b:width] for b, row in zip(behind, ids, strict=True)]
        drawing = [k for k, d in enumerate(draws) if d]
        assert inputs.sampling.tolist() == inputs.draw_at.tolist() == drawing
        assert inputs.num_draws.tolist() == [1] * len(drawing)
        assert inputs.draw_row.tolist() == [members[k] for k in drawing]
        assert inputs.draw_position.tolist() == [starts[k] + 1 - prompts[members[k]] for k in drawing]
        for r in members:
            at[r] = min(at[r] + 1, 29)
