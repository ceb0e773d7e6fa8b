from __future__ import annotations

import math

import pytest

from paceline.contracts.ports import CostModel, StepShape
from paceline.cost import LinearStepCost, decode_shape
from paceline.sim.pace import Pace, later

LINEAR = LinearStepCost(fixed_ms=7.3, per_token_ms=0.31, per_row_ms=0.17, per_context_token_ms=0.0021)


class Bent:
    """Costs that no straight line follows."""

    def step_ms(self, shape: StepShape) -> float:
        return 5.0 + math.sqrt(shape.context_tokens)

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        return 1.0

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        return at_most

    def observe(self, shape: StepShape, ms: float) -> None:
        pass


def one_by_one(cost: CostModel, shape: StepShape, num: int, start: float) -> list[float]:
    ends = [start]
    for step in range(num):
        ends.append(ends[-1] + cost.step_ms(later(shape, step)) / 1e3)
    return ends


@pytest.mark.parametrize("cost", [LINEAR, Bent()])
@pytest.mark.parametrize("num", [1, 2, 3, 40, 3000])
def test_ends_are_those_of_single_steps(cost: CostModel, num: int) -> None:
    shape = decode_shape(6, 100)
    ends = one_by_one(cost, shape, num, 12.5)
    pace = Pace(cost, shape, num, 12.5)
    assert pace.ends(range(num + 1)) == pytest.approx(ends, abs=1e-9)
    assert pace.end(num) == pace.ends([num])[0]


@pytest.mark.parametrize("cost", [LINEAR, Bent()])
def test_steps_begun_before_a_time_are_counted_exactly(cost: CostModel) -> None:
    pace = Pace(cost, decode_shape(3, 50), 200, 1.0)
    assert pace.begun_before(0.5) == pace.begun_before(1.0) == 0
    for num in (1, 2, 17, 199):
        end = pace.end(num)
        assert pace.begun_before(end) == num  # the step that begins at this very moment has not
        assert pace.begun_before(math.nextafter(end, math.inf)) == num + 1
    assert pace.begun_before(1e9) == 200


def test_a_price_without_context_is_a_constant_pace() -> None:
    pace = Pace(LinearStepCost(10.0, 0.0, 0.0, 0.0), decode_shape(3, 50), 1000, 0.0)
    assert pace.end(1000) == pytest.approx(10.0)
    assert pace.begun_before(5.0) == 500
