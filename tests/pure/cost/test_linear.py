from __future__ import annotations

import pytest

from paceline.contracts.ports import StepShape
from paceline.cost.linear import LinearStepCost
from paceline.errors import ConfigError


def shape(tokens: int, rows: int, context: int = 0) -> StepShape:
    return StepShape(num_tokens=tokens, num_rows=rows, num_sampled=rows, context_tokens=context)


def test_a_step_is_the_sum_of_its_parts() -> None:
    cost = LinearStepCost(fixed_ms=5, per_token_ms=0.1, per_row_ms=0.5, per_context_token_ms=0.01)
    assert cost.step_ms(shape(10, 2, 300)) == pytest.approx(5 + 1 + 1 + 3)


def test_a_step_without_rows_takes_no_time() -> None:
    assert LinearStepCost(fixed_ms=5).step_ms(shape(0, 0)) == 0.0


def test_prefill_is_the_marginal_price_of_its_tokens() -> None:
    cost = LinearStepCost(fixed_ms=5, per_token_ms=0.1, per_row_ms=0.5, per_context_token_ms=0.01)
    alone, with_prefill = shape(4, 4, 400), shape(4 + 100, 5, 400 + 30)
    assert cost.prefill_ms(100, 30) == pytest.approx(cost.step_ms(with_prefill) - cost.step_ms(alone))
    assert cost.prefill_ms(0, 30) == 0.0


def test_observations_are_kept_and_change_nothing() -> None:
    cost = LinearStepCost()
    before = cost.step_ms(shape(10, 1))
    cost.observe(shape(10, 1), 1000.0)
    assert cost.step_ms(shape(10, 1)) == before
    assert cost.last_observed == (shape(10, 1), 1000.0)


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ConfigError, match="out of range"):
        LinearStepCost(per_row_ms=-1)
