from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from tests.pure.cost.steps import TRUE_PRICES, cpu_prior, noisy, random_shape, taught, teach, true_ms

from paceline.cost import StepCost, decode_shape, joined, prefill_shape
from paceline.cost.features import NUM_FEATURES, features
from paceline.cost.fit import HUBER, RUN, PriceFit

PROBES = [
    decode_shape(1, 64),
    decode_shape(12, 500),
    prefill_shape(200),
    joined(decode_shape(6, 300), prefill_shape(60)),
]

GOLDEN = [
    "0x1.6a029f7f28007p+1",
    "0x1.e9f5cc61f3aa4p-5",
    "0x1.2972f81abb30bp-4",
    "0x1.0eb5b0494f885p-11",
    "0x1.cf0545c401a7dp-9",
    "0x1.8a5960fa9dba9p-5",
    "0x1.e77807cd2ec80p-7",
    "0x1.0b4858c215c14p-7",
    "0x1.065a16339b3f3p-14",
    "0x1.27297902fa938p-19",
]


def off_by(cost: StepCost, factor: float = 1.0) -> float:
    return max(abs(cost.step_ms(shape) / true_ms(shape, factor) - 1) for shape in PROBES)


def test_one_step_without_noise_takes_the_whole_error_of_a_single_price() -> None:
    fit = PriceFit(scale=[2.0], weights=[1.0], covariance=[1e6], noise=1e-4)
    fit.observe([3.0], 9.0)
    assert fit.expected([3.0]) == pytest.approx(9.0, rel=1e-3)


def test_an_update_is_the_least_squares_answer() -> None:
    """Against the closed form in which prior and observations are one problem, before any forgetting."""
    random = np.random.default_rng(0)
    fit = PriceFit(scale=[1.0, 1.0], weights=[1.0, 1.0], covariance=[0.5, 0.1, 0.4], noise=0.04)
    precision = np.linalg.inv([[0.5, 0.1], [0.1, 0.4]])
    moment = precision @ np.ones(2)
    for amounts in random.uniform(1.0, 5.0, (5, 2)):
        expected = fit.expected(amounts.tolist())
        noise, target = fit.noise, expected * random.uniform(0.9, 1.1)
        fit.observe(amounts.tolist(), target)
        relative = amounts / expected
        precision += np.outer(relative, relative) / noise
        moment += relative * (target / expected) / noise
        np.testing.assert_allclose(fit.weights, np.linalg.solve(precision, moment), rtol=1e-9)


def test_prices_come_to_be_those_of_the_steps() -> None:
    cost = taught(seed=1)
    assert off_by(StepCost.from_prior(cpu_prior())) > 0.25  # the prior is not already right
    assert off_by(cost) < 0.05


def test_no_price_is_ever_negative() -> None:
    """Steps that would be fitted best with a negative price for rows."""
    cost, random = StepCost.from_prior(cpu_prior()), Random(2)
    for _ in range(300):
        shape = random_shape(random)
        cost.observe(shape, max(1.0, true_ms(shape) - 1.5 * shape.num_rows))
        assert min(cost.unit_prices) >= 0.0
    assert min(cost.unit_prices) == 0.0


def test_one_step_that_took_twenty_times_as_long_moves_next_to_nothing() -> None:
    cost = taught(seed=3)
    before = [cost.step_ms(shape) for shape in PROBES]
    cost.observe(PROBES[1], 20 * true_ms(PROBES[1]))
    after = [cost.step_ms(shape) for shape in PROBES]
    assert max(abs(b / a - 1) for a, b in zip(before, after, strict=True)) < 0.01


def test_scattered_outliers_do_not_move_prices() -> None:
    cost, random = taught(seed=4), Random(5)
    for at in range(300):
        shape = random_shape(random)
        cost.observe(shape, noisy(random, true_ms(shape), 0.03) * (8.0 if at % 12 == 0 else 1.0))
    assert off_by(cost) < 0.07


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_machine_that_changes_is_followed_within_a_hundred_steps(factor: float) -> None:
    cost, random = taught(seed=6), Random(7)
    teach(cost, random, 100, factor)
    assert off_by(cost, factor) < 0.1


def test_what_was_not_seen_changes_with_what_was() -> None:
    """An hour of decoding on a machine that became slower: prompts became dearer too, by about as much."""
    cost, random = taught(seed=8), Random(9)
    for _ in range(200):
        shape = decode_shape(random.randrange(1, 17), random.randrange(16, 900))
        cost.observe(shape, noisy(random, true_ms(shape, 2.0), 0.03))
    prompt = prefill_shape(256)
    assert cost.step_ms(PROBES[1]) == pytest.approx(true_ms(PROBES[1], 2.0), rel=0.1)
    assert true_ms(prompt, 1.3) < cost.step_ms(prompt) < true_ms(prompt, 2.7)


def test_long_decoding_alone_leaves_other_prices_where_they_were() -> None:
    cost, random = taught(seed=10), Random(11)
    prompt = prefill_shape(256)
    before = cost.step_ms(prompt)
    for _ in range(2000):
        shape = decode_shape(random.randrange(1, 17), random.randrange(16, 900))
        cost.observe(shape, noisy(random, true_ms(shape), 0.03))
    assert cost.step_ms(prompt) == pytest.approx(before, rel=0.15)


def test_the_covariance_stays_one() -> None:
    cost, random = taught(seed=12), Random(13)
    for _ in range(2000):
        shape = decode_shape(1, random.randrange(16, 100))
        cost.observe(shape, noisy(random, true_ms(shape), 0.03))
    triangle = cost.prices["covariance"]
    assert isinstance(triangle, tuple)
    square = np.zeros((NUM_FEATURES, NUM_FEATURES))
    square[np.triu_indices(NUM_FEATURES)] = triangle
    square = square + np.triu(square, 1).T
    assert np.linalg.eigvalsh(square).min() > -1e-9
    assert all(math.isfinite(value) for value in triangle)


def test_a_change_takes_a_run_of_steps_on_one_side() -> None:
    amounts = features(PROBES[0])
    fit = PriceFit(scale=[1.0] * NUM_FEATURES, weights=list(TRUE_PRICES), covariance=[1e-8] * 55, noise=1e-4)
    for _ in range(RUN - 1):
        fit.observe(amounts, 1.3 * fit.expected(amounts))
    known = fit.uncertainty(amounts)
    assert fit.run == RUN - 1
    fit.observe(amounts, fit.expected(amounts))
    assert fit.run == 0
    assert known < 1e-3
    for _ in range(RUN):
        fit.observe(amounts, (1.0 + 20 * HUBER * math.sqrt(fit.noise)) * fit.expected(amounts))
    assert fit.run in (0, 1)


def test_the_same_steps_give_these_very_bits() -> None:
    """A journal that was recorded anywhere is replayed anywhere, so the last bit counts. No golden number is right or
    wrong by itself: one that changes means that old journals are no longer replayed."""
    fit = PriceFit(scale=[2.0, *[0.1] * 5, 0.05, 0.02, 1e-4, 1e-5], weights=[1.0, *[0.7] * 9])
    for at in range(40):
        shape = joined(decode_shape(1 + at % 7, 11 * at), prefill_shape(1 + 37 * at % 301))
        fit.observe(features(shape), (3.0 + at % 5) * (9.0 if at % 9 == 8 else 1.0))
    assert [price.hex() for price in fit.prices] == GOLDEN
