from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.router import Load, Reports
from paceline.router.scaling import Scaler, ScalingPolicy

POLICY = ScalingPolicy(min_replicas=1, max_replicas=10, target_open=4.0, max_up=3, down_after_s=30.0)


def desired(scaler: Scaler, now: float, ready: int, num_open: int, starting: int = 0) -> int:
    return scaler.look(now, num_ready=ready, num_starting=starting, num_open=num_open).desired


def test_as_many_replicas_as_bring_each_to_its_target() -> None:
    assert desired(Scaler(POLICY), 0.0, 4, 20) == 5
    assert desired(Scaler(POLICY), 0.0, 4, 17) == 4  # within the tolerance
    assert desired(Scaler(POLICY), 0.0, 4, 0) == 1


def test_growth_is_bounded_at_one_look_and_in_all() -> None:
    scaler = Scaler(POLICY)
    assert desired(scaler, 0.0, 2, 400) == 5
    assert desired(scaler, 5.0, 2, 400, starting=3) == 8
    assert desired(scaler, 10.0, 5, 400, starting=3) == 10


def test_what_is_starting_is_not_asked_for_again() -> None:
    assert desired(Scaler(POLICY), 0.0, 2, 20, starting=3) == 5


def test_a_fleet_shrinks_only_when_fewer_were_wanted_for_a_while() -> None:
    scaler = Scaler(POLICY)
    assert desired(scaler, 0.0, 6, 24) == 6
    assert desired(scaler, 10.0, 6, 4) == 6  # six were wanted ten seconds ago
    assert desired(scaler, 31.0, 6, 12) == 3  # they were not in the last thirty
    assert desired(scaler, 35.0, 3, 4) == 3
    assert desired(scaler, 45.0, 3, 4) == 3
    assert desired(scaler, 62.0, 3, 4) == 1


def test_an_old_wish_keeps_replicas_and_starts_none() -> None:
    scaler = Scaler(POLICY)
    assert desired(scaler, 0.0, 9, 38) == 9  # within the tolerance
    assert desired(scaler, 5.0, 4, 4) == 4  # five of them failed: none is started for one replica's load


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_replicas": 0},
        {"min_replicas": 3, "max_replicas": 2},
        {"target_open": 0.0},
        {"period_s": 0.0},
        {"tolerance": 1.0},
        {"max_up": 0},
        {"down_after_s": float("inf")},
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        ScalingPolicy(**wrong)


def test_reports_show_what_was_and_not_what_is() -> None:
    actual = [Load(0), Load(1)]
    reports = Reports(2.0)
    assert [load.num_waiting for load in reports.loads(actual, 0.0)] == [0, 0]
    actual[0].num_waiting = 3
    actual[0].prefill_tokens = 100
    assert reports.loads(actual, 1.9)[0].num_waiting == 0
    seen = reports.loads(actual, 2.0)[0]
    assert (seen.num_waiting, seen.prefill_tokens) == (3, 100)
    actual.append(Load(2))
    assert [load.replica for load in reports.loads(actual, 2.1)] == [0, 1, 2]
