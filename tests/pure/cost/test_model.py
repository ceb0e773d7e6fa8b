from __future__ import annotations

import math
from random import Random

import msgspec
import pytest
from tests.pure.cost.steps import cpu_prior, noisy, random_shape, taught, teach, true_ms

from paceline.contracts.ports import StepShape
from paceline.contracts.step import decode, encode
from paceline.cost import LinearStepCost, StepCost, decode_shape, joined, prefill_shape, restore
from paceline.cost.batch import fit_steps
from paceline.cost.cells import Limits, grid, held_out
from paceline.cost.model import EVERY, SETTLED

LIMITS = Limits(max_rows=16, max_tokens=512, max_model_len=2048, num_blocks=4096, block_size=16)


def timed(seed: int, spread: float = 0.0) -> StepCost:
    random = Random(seed)
    steps = [(cell.shape, noisy(random, true_ms(cell.shape), spread)) for cell in grid(LIMITS)]
    return fit_steps(cpu_prior(), steps, step_spread=spread)


def test_a_fresh_model_prices_steps_as_its_prior_does() -> None:
    prior = cpu_prior()
    cost = StepCost.from_prior(prior)
    for shape in (decode_shape(1, 64), decode_shape(8, 512), prefill_shape(32), prefill_shape(512), prefill_shape(128)):
        assert cost.step_ms(shape) == pytest.approx(prior.step_ms(shape), rel=0.25)


def test_a_step_without_rows_takes_no_time_and_teaches_nothing() -> None:
    cost = StepCost.from_prior(cpu_prior())
    empty = StepShape(num_tokens=0, num_rows=0, num_sampled=0, context_tokens=0)
    assert cost.step_ms(empty) == 0.0
    assert cost.estimate(empty).hi == 0.0
    cost.observe(empty, 5.0)
    cost.observe(decode_shape(1, 10), 0.0)
    cost.observe(decode_shape(1, 10), math.inf)
    assert cost.num_observed == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_larger_step_is_never_cheaper(seed: int) -> None:
    cost, random = taught(seed, count=60, spread=0.3), Random(seed)
    for _ in range(200):
        shape = random_shape(random)
        base = cost.step_ms(shape)
        for name in ("num_tokens", "num_rows", "num_sampled", "num_prompt_logits"):
            more = {name: getattr(shape, name) + 7}
            if name == "num_tokens":
                more["attention_pairs"] = shape.attention_pairs + 7
            assert cost.step_ms(msgspec.structs.replace(shape, **more)) >= base
        longer = {"context_tokens": shape.context_tokens + 50, "attention_pairs": shape.attention_pairs + 50}
        assert cost.step_ms(msgspec.structs.replace(shape, **longer)) >= base
        assert cost.step_ms(joined(shape, prefill_shape(5, 3))) >= base


def test_prefill_is_the_price_of_a_chunk_without_the_fixed_part() -> None:
    cost = taught(1)
    shape = prefill_shape(100, 40, sampled=False)
    assert cost.prefill_ms(100, 40) == pytest.approx(cost.step_ms(shape) - cost.unit_prices[0])
    assert cost.prefill_ms(0) == 0.0
    assert cost.prefill_ms(200) > cost.prefill_ms(100) > 0.0
    assert cost.prefill_ms(100, 900) > cost.prefill_ms(100)


def test_the_most_tokens_within_a_time_are_just_those() -> None:
    cost = taught(2)
    decodes = decode_shape(8, 300)
    for ms in (50.0, 100.0, 300.0):
        most = cost.tokens_within(ms, decodes, 200, at_most=4096)
        assert cost.step_ms(joined(decodes, prefill_shape(most, 200))) <= ms
        assert cost.step_ms(joined(decodes, prefill_shape(most + 1, 200))) > ms
    assert cost.tokens_within(0.5 * cost.step_ms(decodes), decodes, at_most=4096) == 0
    assert cost.tokens_within(1e9, decodes, at_most=77) == 77
    assert cost.tokens_within(1e9, decodes, at_most=0) == 0


def test_tiers_say_how_a_number_was_come_by() -> None:
    fresh, cost = StepCost.from_prior(cpu_prior()), timed(1)
    assert fresh.estimate(decode_shape(4, 100)).tier == "first principles"
    for cell in grid(LIMITS):
        assert cost.estimate(cell.shape).tier == "measured"
    for cell in held_out(LIMITS):
        assert cost.estimate(cell.shape).tier == "interpolated"
    beyond = cost.estimate(decode_shape(64, 1000))
    assert beyond.tier == "extrapolated"
    assert "64 rows" in beyond.why
    assert (beyond.hi - beyond.lo) / beyond.value > 0.5
    fresh.observe(decode_shape(4, 100), 10.0)
    assert fresh.estimate(decode_shape(4, 100)).tier != "first principles"


@pytest.mark.parametrize("spread", [0.05, 0.15])
def test_nine_in_ten_steps_fall_into_their_interval(spread: float) -> None:
    cost, random = timed(3, spread), Random(4)
    teach(cost, random, 300, spread=spread)
    inside = 0
    for _ in range(500):
        shape = random_shape(random)
        ms = noisy(random, true_ms(shape), spread)
        found = cost.estimate(shape)
        inside += found.lo <= ms <= found.hi
        cost.observe(shape, ms)
    assert 0.82 <= inside / 500 <= 0.98


def test_an_equal_one_learns_the_same_to_the_bit() -> None:
    cost, random = taught(5, count=37), Random(6)
    data = encode(cost.prices)
    again = restore(**decode(data, dict[str, float | tuple[float, ...]]))  # type: ignore[arg-type, type-var]
    assert isinstance(again, StepCost)
    for _ in range(100):
        shape = random_shape(random)
        ms = noisy(random, true_ms(shape), 0.3)
        assert again.step_ms(shape) == cost.step_ms(shape)
        again.observe(shape, ms)
        cost.observe(shape, ms)
    assert again.prices == cost.prices


def test_settled_prices_learn_from_one_step_in_four() -> None:
    cost = taught(9, count=SETTLED)
    learnt = []
    for _ in range(4 * EVERY):
        before = cost.num_observed
        cost.observe(decode_shape(3, 100), 30.0)
        learnt.append(cost.num_observed - before)
    assert learnt == [*[0] * (EVERY - 1), 1] * 4


def test_a_frozen_one_stays_and_leaves_the_first_alone() -> None:
    cost = taught(7)
    frozen = cost.frozen()
    before = cost.prices
    teach(frozen, Random(8), 50, factor=3.0)
    assert frozen.step_ms(decode_shape(4, 100)) == cost.step_ms(decode_shape(4, 100))
    assert cost.prices == before


def test_given_prices_are_restored_as_such() -> None:
    given = LinearStepCost(fixed_ms=3.0, per_token_ms=0.5)
    again = restore(**given.prices)
    assert isinstance(again, LinearStepCost)
    assert again.prices == given.prices
    with pytest.raises(TypeError):
        restore(per_step_ms=1.0)


def test_timed_steps_are_fitted_and_others_between_them_predicted() -> None:
    cost = timed(9, spread=0.01)
    errors = [abs(cost.step_ms(cell.shape) / true_ms(cell.shape) - 1) for cell in [*grid(LIMITS), *held_out(LIMITS)]]
    assert max(errors) < 0.06


def test_one_timed_step_that_is_wrong_is_not_believed() -> None:
    steps = [(cell.shape, true_ms(cell.shape)) for cell in grid(LIMITS)]
    shape, ms = steps[5]
    steps[5] = (shape, 4 * ms)
    cost = fit_steps(cpu_prior(), steps, step_spread=0.02)
    assert cost.step_ms(shape) == pytest.approx(ms, rel=0.1)
