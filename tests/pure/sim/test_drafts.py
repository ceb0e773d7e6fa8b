from __future__ import annotations

import msgspec
import pytest
from tests.pure.sim.kit import COST, plan_of, replica_spec, run_fleet, stream

from paceline.cost import LinearStepCost
from paceline.errors import ConfigError, UnsupportedError
from paceline.sim.drafts import CurveDrafter
from paceline.sim.fleet import ReplicaSpec

CURVE = (1.7, 2.2, 2.5)


def drafting(lengths: tuple[float, ...] = CURVE) -> ReplicaSpec:
    spec = replica_spec(num_blocks=4096, prefix_caching=False, num_draft_tokens=len(lengths), max_model_len=4096)
    return msgspec.structs.replace(spec, acceptance=lengths)


@pytest.mark.parametrize("num", [1, 2, 3])
def test_a_step_yields_what_the_curve_says(num: int) -> None:
    plan = plan_of(num_requests=2, drain_s=1e6, stream=[stream({"kind": "constant", "rate": 0.001}, 8, 1000)])
    ended, cluster = run_fleet(plan, drafting(CURVE[:num]))
    assert sum(e.usage.output_tokens for e in ended if e.usage is not None) == 2000
    assert 2000 / cluster.totals.num_steps == pytest.approx(CURVE[num - 1], rel=0.04)


def test_drafts_pay_where_a_step_costs_the_same_and_harm_where_positions_are_dear() -> None:
    plan = plan_of(num_requests=8, drain_s=1e6, stream=[stream({"kind": "burst", "size": 4, "every_s": 9.0}, 8, 200)])
    flat, steep = LinearStepCost(10.0, 0.0, 0.0, 0.0), LinearStepCost(1.0, 2.0, 0.0, 0.0)
    plain = replica_spec(num_blocks=4096, prefix_caching=False)
    for cost, pays in ((flat, True), (steep, False)):
        tpots = []
        for spec in (plain, drafting()):
            ended, _ = run_fleet(plan, spec, cost=cost)
            tpots.append(sum(e.timeline.tpot_s for e in ended if e.timeline is not None))
        assert (tpots[1] < tpots[0]) is pays


def test_a_curve_must_be_one() -> None:
    for wrong in ((), (2.5,), (1.5, 1.4), (1.2, 1.9)):
        with pytest.raises(ConfigError):
            CurveDrafter(wrong)
    spec = replica_spec(num_draft_tokens=2)
    with pytest.raises(UnsupportedError, match="acceptance curve alone"):
        run_fleet(plan_of(num_requests=1, stream=[stream({"kind": "constant", "rate": 1.0})]), spec, cost=COST)
