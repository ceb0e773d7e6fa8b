"""How many sequences of a distribution fit, against draws."""

import numpy as np
import pytest
from tests.pure.planner.kit import lognormal, traffic

from paceline.contracts.kv import plan_kv_groups
from paceline.errors import ConfigError
from paceline.planner import CARDS, Traffic
from paceline.planner.capacity import overflow_risk, sequences_that_fit
from paceline.planner.traffic import held_lengths, holding

GROUPS = plan_kv_groups(CARDS["llama-3.1-8b"].spec, 16, 2)


def drawn_sums(load, num_seqs, groups=GROUPS, rounds=4000):
    """Blocks of `num_seqs` running sequences, many times, by the definition: long answers are met more often."""
    rng = np.random.default_rng(7)
    size = (rounds, num_seqs)
    inputs = rng.choice(load.input_tokens, size)
    outputs = rng.choice(load.output_tokens, size, p=load.output_tokens / load.output_tokens.sum())
    lengths = np.ceil(inputs + rng.random(size) * outputs)
    blocks = np.zeros(size)
    for group in groups:
        blocks += np.minimum(np.ceil(lengths / 16), group.max_blocks(load.longest, 512))
    return blocks.sum(axis=1)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b"])
def test_the_mean_and_spread_are_those_of_draws(model):
    load, groups = traffic(), plan_kv_groups(CARDS[model].spec, 16, 2)
    held = holding(load, groups, 512)
    sums = drawn_sums(load, 40, groups)
    assert held.mean == pytest.approx(sums.mean() / 40, rel=0.01)
    assert held.sd == pytest.approx(sums.std() / 40**0.5, rel=0.05)


@pytest.mark.parametrize("num_seqs", [10, 40, 160])
@pytest.mark.parametrize("share", [0.9, 0.97, 0.99])
def test_the_risk_of_overflow_is_that_of_draws(num_seqs, share):
    load = traffic()
    sums = np.sort(drawn_sums(load, num_seqs))
    blocks = int(sums[int(share * len(sums))])
    drawn = float((sums > blocks).mean())
    assert overflow_risk(holding(load, GROUPS, 512), num_seqs, blocks) == pytest.approx(drawn, abs=0.012)


def test_far_more_fit_than_if_each_were_the_longest():
    load = traffic()
    fit = sequences_that_fit(holding(load, GROUPS, 512), 30_000)
    assert fit.num_seqs > 3 * fit.by_longest > 0
    assert fit.risk <= 0.01
    held = holding(load, GROUPS, 512)
    assert overflow_risk(held, fit.num_seqs + 1, 30_000) > 0.01
    assert drawn_sums(load, fit.num_seqs, rounds=2000).mean() < 30_000


def test_equal_lengths_carry_no_risk_below_their_sum():
    load = Traffic(input_tokens=np.array([1000.0]), output_tokens=np.array([1.0]))
    held = holding(load, GROUPS, 512)
    assert (held.sd, held.most) == (0.0, 63)
    assert sequences_that_fit(held, 630).num_seqs == 10
    assert sequences_that_fit(held, 629).num_seqs == 9


def test_a_cache_too_small_for_the_longest_holds_none():
    assert sequences_that_fit(holding(traffic(), GROUPS, 512), 10).num_seqs == 0


def test_windows_cap_what_long_sequences_hold():
    load = Traffic(input_tokens=np.array([30_000.0]), output_tokens=np.array([100.0]))
    groups = plan_kv_groups(CARDS["gemma-3-27b"].spec, 16, 2)
    sliding = [g for g in groups if g.window]
    full = [g for g in groups if not g.window]
    expected = sum(g.max_blocks(30_100, 512) for g in sliding)
    held = holding(load, groups, 512)
    assert held.mean == pytest.approx(expected + len(full) * 30_050 / 16, rel=0.002)


def test_a_running_request_is_met_by_its_length():
    load = Traffic(input_tokens=np.array([100.0]), output_tokens=np.array([10.0, 90.0]))
    lengths, weights = held_lengths(load)
    assert weights.sum() == pytest.approx(1)
    assert weights[lengths > 110].sum() == pytest.approx(0.9 * 7 / 8, abs=0.06)
    assert load.mean_context == pytest.approx(100 + (10 * 5 + 90 * 45) / 100, rel=0.01)


@pytest.mark.parametrize(
    "changed",
    [
        {"input_tokens": np.array([])},
        {"output_tokens": np.array([0.0])},
        {"rate_rps": 0.0},
        {"cached_share": 1.0},
        {"arrival_cv": -1.0},
    ],
)
def test_traffic_that_cannot_be_is_refused(changed):
    with pytest.raises(ConfigError):
        traffic(**changed)


def test_the_kit_is_the_distribution_it_names():
    assert np.median(lognormal(800, 4000, 1001)) == pytest.approx(800, rel=0.01)
