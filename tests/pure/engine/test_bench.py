from __future__ import annotations

import pytest

from paceline.contracts.kv import KVLayout
from paceline.contracts.step import StepPlan, StepResult
from paceline.engine import bench


def test_the_table_has_each_part_with_and_without_a_queue() -> None:
    table = bench.run(rows=(1, 3), waiting=5, steps=4)
    assert [(e["rows"], e["waiting"]) for e in table] == [(1, 0), (1, 5), (3, 0), (3, 5)]
    for entry in table:
        assert list(entry["parts"]) == ["plan", "apply", "encode"]
        assert all(us > 0 for us in entry["parts"].values())
        assert entry["host_ms"] == pytest.approx((entry["parts"]["plan"] + entry["parts"]["apply"]) / 1000)
    assert [e["limit_ms"] for e in table] == [0.1, 0.1, None, None]
    assert len(bench.render(table).splitlines()) == 5


def test_a_runtime_lends_its_input_build() -> None:
    rounds: list[list[int]] = []

    class Build:
        def __init__(self) -> None:
            self.seen: list[int] = []
            rounds.append(self.seen)

        def build(self, plan: StepPlan) -> None:
            self.seen.append(plan.step)

        def append(self, result: StepResult) -> None:
            assert result.step == self.seen[-1]

    def make_build(layout: KVLayout, rows: int, longest: int) -> Build:
        assert rows == 2
        assert layout.num_blocks * layout.block_size >= rows * longest
        return Build()

    (entry,) = bench.run(rows=(2,), waiting=0, steps=3, make_build=make_build)
    assert "input build" in entry["parts"]
    assert len(rounds) == 3
    assert all(seen == sorted(seen) and len(seen) >= 103 for seen in rounds)
