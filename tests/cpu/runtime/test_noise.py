from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.fakes.sampling_reference import reference_noise, reference_words

from paceline.runtime import noise


def keys_for(draws: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    keys = np.asarray([noise.choice_key(seed, choice) for seed, choice, _ in draws], dtype=np.uint64)
    multiplier, offset = noise.position_keys(keys, np.asarray([p for _, _, p in draws]))
    return torch.from_numpy(multiplier)[:, None], torch.from_numpy(offset)[:, None]


DRAWS = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (2**64 - 1, 127, 131_071), (12345, 2, 77)]


def test_hash_words_are_the_integers_of_the_definition() -> None:
    ids = torch.arange(70_000, dtype=torch.int32)
    words = noise.hash_words(ids, *keys_for(DRAWS)).numpy().view(np.uint32)
    for row, (seed, choice, position) in zip(words, DRAWS, strict=True):
        assert np.array_equal(row, reference_words(seed, choice, position, ids.numpy()))


def test_noise_does_not_depend_on_which_other_ids_are_asked_for() -> None:
    keys = keys_for(DRAWS)
    everything = noise.gumbel(torch.arange(5000, dtype=torch.int32), *keys)
    some = torch.tensor([[7, 4999, 0, 1234]] * len(DRAWS), dtype=torch.int32)
    assert torch.equal(noise.gumbel(some, *keys), everything[:, [7, 4999, 0, 1234]])


def test_noise_matches_the_formula() -> None:
    ids = torch.arange(20_000, dtype=torch.int32)
    got = noise.gumbel(ids, *keys_for(DRAWS)).numpy()
    for row, (seed, choice, position) in zip(got, DRAWS, strict=True):
        np.testing.assert_allclose(row, reference_noise(seed, choice, position, ids.numpy()), rtol=1e-12, atol=1e-14)


def test_stated_limits_are_those_of_24_bits() -> None:
    w = (np.asarray([0, 2**24 - 1]) + 0.5) / 2**24
    highest, lowest = sorted(-np.log(-np.log1p(-w)), reverse=True)
    assert pytest.approx(lowest) == noise.NOISE_MIN
    assert pytest.approx(highest) == noise.NOISE_MAX
    assert noise.NOISE_SPAN < 20.3


def test_bound_is_never_below_the_noise_and_close_where_winners_are() -> None:
    ids = torch.arange(1 << 20, dtype=torch.int32)
    keys = keys_for(DRAWS[:2])
    bound = torch.zeros(2, len(ids))
    noise.add_gumbel_bound(bound, ids, *keys)
    true = noise.gumbel(ids, *keys)
    slack = bound.double() - true
    assert slack.min() >= 0.0
    assert slack[true > 5.0].max() < 0.08


def test_noise_has_the_moments_of_a_gumbel_variable() -> None:
    got = noise.gumbel(torch.arange(1 << 18, dtype=torch.int32), *keys_for(DRAWS))
    n = got.shape[1]
    mean, var = got.mean(dim=1), got.var(dim=1)
    # five standard errors; the variance's uses the Gumbel's kurtosis of 5.4
    assert (mean - 0.57721566).abs().max() < 5 * math.sqrt(math.pi**2 / 6 / n)
    assert (var - math.pi**2 / 6).abs().max() < 5 * math.pi**2 / 6 * math.sqrt(4.4 / n)


def test_streams_of_different_seeds_choices_and_positions_are_uncorrelated() -> None:
    draws = [(s, c, p) for s in (0, 1, 2) for c in (0, 1) for p in (0, 1, 2)]
    got = noise.gumbel(torch.arange(1 << 16, dtype=torch.int32), *keys_for(draws)).numpy()
    correlation = np.corrcoef(got) - np.eye(len(draws))
    assert np.abs(correlation).max() < 5 / math.sqrt(1 << 16)
    shifted = np.asarray([np.corrcoef(row[:-1], row[1:])[0, 1] for row in got])  # neighbouring ids
    assert np.abs(shifted).max() < 5 / math.sqrt(1 << 16)


def test_first_id_over_many_positions_is_uniform() -> None:
    draws = [(9, 0, p) for p in range(50_000)]
    for token in (0, 1, 31_999):
        words = noise.hash_words(torch.tensor([token], dtype=torch.int32), *keys_for(draws))[:, 0]
        bins = np.bincount(words.numpy().view(np.uint32) >> 27, minlength=32)
        expected = len(draws) / 32
        assert ((bins - expected) ** 2 / expected).sum() < 70  # 31 degrees of freedom, p < 1e-4
