"""Which simulations schedule by targets: those that were asked to."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.assemble.sim import load_workload, simulate, simulated_engine
from paceline.config import load_config
from paceline.lab.workload import parse_slo, with_slo


def chunks(class_targets: bool, **flags: Any) -> list[list[int]]:
    """When tokens came, under a load that not all targets bear."""
    engine = simulated_engine(load_config(flags={"model": "llama-3.1-8b", **flags}), card="l40s")
    spec = with_slo(load_workload("steady", engine, rate=8.0, duration_s=5.0), parse_slo("ttft=300ms,tpot=40ms"))
    return [
        [chunk.t_ns for chunk in record.chunks]
        for record in simulate(engine, spec, class_targets=class_targets).records
    ]


def test_targets_of_a_workload_are_no_targets_of_the_server_unless_the_mode_is_set() -> None:
    fixed = chunks(True, scheduling_mode="fixed")
    assert chunks(True) == fixed  # the profile says auto, and there is no table of classes
    assert chunks(True, scheduling_mode="auto") != fixed


@pytest.mark.parametrize("mode", ["fixed", "auto"])
def test_without_a_table_both_modes_serve_alike(mode: str) -> None:
    assert chunks(False, scheduling_mode=mode) == chunks(False)
