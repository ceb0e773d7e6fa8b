"""Prices of rows against prompts, as plain numbers; what was lately."""

from __future__ import annotations

import pytest

from paceline.engine.lately import UsualRows
from paceline.engine.weighing import RowRoom, best_step, num_in_time, wins_more

STEP_S, LEAST_S, MOST_S = 0.010, 0.011, 0.060
TIGHT = RowRoom(step_s=LEAST_S, likely=64, spare_s=0.0, unsure_s=0.130)
EASY = RowRoom(step_s=0.040, likely=64, spare_s=0.5, unsure_s=0.130)


def step(rows: list[RowRoom], prompts: list[tuple[float, float]]) -> float:
    return best_step(rows, prompts, step_s=STEP_S, least_s=LEAST_S, most_s=MOST_S)


def test_one_row_at_the_edge_does_not_hold_up_many_prompts() -> None:
    prompts = [(0.005, 0.2)] * 20  # 100 ms of prompts, due in 200; 1 ms for them in a step takes 1.1 s
    assert step([TIGHT] + [EASY] * 10, prompts) > LEAST_S


def test_many_rows_at_the_edge_are_protected_from_one_prompt() -> None:
    assert step([TIGHT] * 20, [(0.005, 0.03)]) == LEAST_S


def test_prompts_that_are_in_time_anyway_take_nothing_from_anybody() -> None:
    assert step([TIGHT], [(0.005, 10.0)] * 3) == LEAST_S


def test_prompts_that_cannot_be_in_time_take_nothing_from_anybody() -> None:
    assert step([TIGHT], [(0.5, 0.2)] * 20) == LEAST_S


def test_of_equals_the_step_that_protects_most() -> None:
    # the easy row alone would bear 40 ms; one prompt more is in time with any longer step
    assert LEAST_S < step([TIGHT, EASY, EASY], [(0.015, 0.05)]) <= EASY.step_s


def test_a_row_loses_by_a_delay_what_nobody_can_foresee() -> None:
    assert TIGHT.risk(0.026) == pytest.approx(0.1)
    assert TIGHT.risk(1.0) == 1.0
    assert EASY.risk(0.2) == 0.0
    assert RowRoom(0.01, 1, 0.0, 0.0).risk(0.001) == 1.0


def test_prompts_that_would_be_late_are_passed_over() -> None:
    assert num_in_time([(0.1, 0.05), (0.02, 0.2)], 0.01, 0.01) == (1, 0.02)
    assert num_in_time([], 0.01, 0.01) == (0, 0.0)


def test_a_target_to_win_is_worth_a_little_of_each_row_and_no_more() -> None:
    assert wins_more(1.0, [TIGHT] * 10, 0.0001, 64)
    assert not wins_more(1.0, [TIGHT] * 100, 0.0001, 64)
    assert not wins_more(0.0, [], 0.0, 64)


def test_usual_rows_are_a_mean_over_the_time_there_were_any() -> None:
    usual = UsualRows()
    assert usual.mean(0.0) == 0.0
    now = 100.0
    for num in (4, 8):
        for _ in range(20):
            usual.note(num, now)
            now += 0.1
    usual.note(0, now)
    assert usual.mean(now) == pytest.approx(6.0)
    usual.note(8, now + 500.0)  # nobody was there
    usual.note(0, now + 500.1)
    assert usual.mean(now + 500.1) == pytest.approx(8.0)
