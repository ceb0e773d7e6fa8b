from __future__ import annotations

import numpy as np
import pytest

from paceline.contracts.kv import KVGroupSpec, KVLayout
from paceline.contracts.ports import plan_shape
from paceline.cost.cells import Cell, Limits, cell_plan, filling_plans, grid, held_out

USUAL = Limits(max_rows=16, max_tokens=512, max_model_len=2048, num_blocks=4096, block_size=16)
TINY = Limits(max_rows=2, max_tokens=8, max_model_len=24, num_blocks=12, block_size=4)
LEAST = Limits(max_rows=1, max_tokens=1, max_model_len=4, num_blocks=2, block_size=2)


def layout(limits: Limits, groups: int = 1) -> KVLayout:
    made = tuple(
        KVGroupSpec(kind="full", layers=(i,), block_size=limits.block_size, bytes_per_block=64) for i in range(groups)
    )
    return KVLayout(groups=made, num_blocks=limits.num_blocks)


@pytest.mark.parametrize("limits", [USUAL, TINY, LEAST])
def test_every_cell_fits_and_none_comes_twice(limits: Limits) -> None:
    cells = [*grid(limits), *held_out(limits)]
    shapes = [cell.shape for cell in cells]
    assert grid(limits)
    assert len(set(shapes)) == len(shapes)
    for cell in cells:
        plan = cell_plan(cell, layout(limits), 3)
        assert plan_shape(plan) == cell.shape
        assert plan.num_rows <= limits.max_rows
        assert plan.num_tokens <= limits.max_tokens
        assert max(len(admit.token_ids) for admit in plan.admits) <= limits.max_model_len
        assert plan.new_block_id.min() >= 1
        assert plan.new_block_id.max() <= limits.num_blocks
        assert len(np.unique(plan.new_block_id)) == len(plan.new_block_id)  # rows share nothing


def test_the_usual_grid_has_every_kind_of_step_and_stays_short() -> None:
    cells = grid(USUAL)
    assert 15 <= len(cells) <= 40
    assert any(cell.rows and cell.chunk for cell in cells)
    assert any(cell.chunk and cell.cached for cell in cells)
    assert any(cell.chunk and not cell.sampled for cell in cells)
    assert max(cell.rows for cell in cells) == USUAL.max_rows
    assert len(held_out(USUAL)) >= 6


def test_a_chunk_that_does_not_end_its_prompt_draws_nothing() -> None:
    plan = cell_plan(Cell(chunk=5, cached=8, sampled=False), layout(USUAL), 0)
    assert plan.sample.tolist() == [0]
    assert len(plan.admits[0].token_ids) == 14
    assert cell_plan(Cell(chunk=5, cached=8), layout(USUAL), 0).sample.tolist() == [1]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("limits", [USUAL, TINY, LEAST])
def test_filling_writes_every_block_that_cells_read(limits: Limits, groups: int) -> None:
    cells = [*grid(limits), *held_out(limits)]
    place = layout(limits, groups)
    written: set[int] = set()
    for plan in filling_plans(cells, place, limits):
        assert set(plan.copy_src.tolist()) <= written
        assert plan.num_tokens <= limits.max_tokens
        written |= {*plan.new_block_id.tolist(), *plan.copy_dst.tolist()}
    assert all(set(cell_plan(cell, place, 0).new_block_id.tolist()) <= written for cell in cells)


def test_a_cell_says_what_it_is() -> None:
    assert str(Cell(rows=2, context=64, chunk=16, cached=8)) == "2 rows at 64 and 16 positions behind 8"
    assert str(Cell(chunk=16)) == "16 positions behind 0"
    assert str(Cell(chunk=16, sampled=False)) == "16 positions behind 0, no draw"
