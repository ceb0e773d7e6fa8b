"""The planner's step times as a cost model."""

from __future__ import annotations

from random import Random

import pytest

from paceline.assemble.round_prices import RoundPrices
from paceline.contracts.ports import StepShape
from paceline.cost import decode_shape, joined, prefill_shape
from paceline.cost.prior import Degrees
from paceline.planner import CARDS, DEVICES, Layout
from paceline.planner.step import LayoutSteps, layout_prior
from paceline.sim.pace import Pace, later


def steps(model: str = "llama-3.1-8b", **degrees: int) -> LayoutSteps:
    spec = CARDS[model].spec
    return layout_prior(
        spec, DEVICES["h100-sxm"], Layout(degrees=Degrees(**degrees)), per_node=8, weights="bf16",
        weight_bytes=2 * spec.num_parameters, dtype_bytes=2, kv_dtype_bytes=2,
    )  # fmt: skip


@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"pp": 4}, {"tp": 2, "pp": 2}, {"cp": 4}])
def test_prices_are_those_of_rounds(degrees: dict[str, int]) -> None:
    of_layout, random = steps(**degrees), Random(0)
    prices = RoundPrices(of_layout)
    for _ in range(60):
        rows, chunk = random.randint(1, 200), random.randint(1, 3000)
        decodes = decode_shape(rows, random.randint(50, 4000))
        mixed = joined(decodes, prefill_shape(chunk, random.choice((0, 700))))
        assert prices.step_ms(mixed) == of_layout.round_ms(mixed)
        assert prices.step_ms(decodes) == pytest.approx(
            of_layout.round_ms(decodes), rel=2e-2 if "cp" in degrees else 2e-3
        )
    nothing = StepShape(num_tokens=0, num_rows=0, num_sampled=0, context_tokens=0)
    assert prices.step_ms(nothing) == 0.0


def test_a_run_of_decode_steps_is_not_looked_at_step_by_step() -> None:
    """Also where a pipeline's micro-batches round a context up."""
    prices = RoundPrices(steps(pp=4))
    shape = decode_shape(37, 1000)
    pace = Pace(prices, shape, 20, 2.0)
    assert pace._ends is None
    one_by_one = 2.0 + sum(prices.step_ms(later(shape, j)) for j in range(20)) / 1e3
    assert pace.end(20) == pytest.approx(one_by_one, rel=1e-12)


def test_it_answers_what_a_scheduler_asks() -> None:
    prices = RoundPrices(steps())
    rows = decode_shape(16, 1000)
    fit = prices.tokens_within(20.0, rows, at_most=8192)
    least, more = (prices.step_ms(joined(rows, prefill_shape(num))) for num in (fit, fit + 1))
    assert least <= 20.0 < more
    assert prices.prefill_ms(0) == 0.0
    assert 0.0 < prices.prefill_ms(512) < prices.prefill_ms(2048)
    found = prices.estimate(rows)
    assert found.value == pytest.approx(prices.step_ms(rows))
    assert found.lo < found.value < found.hi
    assert found.tier == "first principles"


def test_a_price_bends_where_a_ring_begins_to_wait_for_keys() -> None:
    """Four ranks move keys for a short context and queries for a long one: no one line holds for both."""
    of_layout = steps(cp=4)
    prices = RoundPrices(of_layout)
    for context in (0, 1, 100, 1500, 9000, 60_000, 131_000):
        assert prices.step_ms(decode_shape(1, context)) == pytest.approx(
            of_layout.round_ms(decode_shape(1, context)), rel=0.02
        )
    assert prices.step_ms(decode_shape(1, 131_000)) < 12.0
