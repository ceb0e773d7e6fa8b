"""Passes over the vocabulary: native bounds are bounds, and near; native masks have the reference's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.runtime import noise
from paceline.runtime.kernels.cpu import draws as native
from paceline.runtime.kernels.cpu.native import isa, isa_levels, set_isa, why_not
from paceline.runtime.kernels.reference import draws as reference
from paceline.runtime.kernels.reference.largest import PIECE

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
LEVELS = [] if why_not() else sorted({"avx2", isa_levels()[-1]})


def keys(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    choices = np.array([noise.choice_key(seed, at) for at in range(count)], dtype=np.uint64)
    multiplier, offset = noise.position_keys(choices, np.arange(count))
    return torch.from_numpy(multiplier)[:, None], torch.from_numpy(offset)[:, None]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab_size", [1, 15, 16, 128, 129, 1000, 4099])
def test_bounds_hold_and_are_the_references(vocab_size: int, level: str) -> None:
    torch.manual_seed(vocab_size)
    z = torch.randn(7, vocab_size + 3)[:, :vocab_size] * 5  # rows lie apart
    z[2, ::2] = float("-inf")
    multiplier, offset = keys(7, seed=vocab_size)
    rows = torch.tensor([5, 0, 2, 6])
    before = isa()
    try:
        set_isa(level)
        bounds = native.draw_bounds(z, rows, multiplier, offset)
    finally:
        set_isa(before)
    torch.testing.assert_close(bounds, reference.draw_bounds(z, rows, multiplier, offset), rtol=0, atol=1e-4)
    ids = torch.arange(vocab_size, dtype=torch.int32)
    exact = z[rows] + noise.gumbel(ids, multiplier[rows], offset[rows])
    for piece in range(bounds.shape[1]):
        assert (bounds[:, piece].double() >= exact[:, PIECE * piece : PIECE * (piece + 1)].amax(1)).all()


def test_nothing_allowed_has_no_bound() -> None:
    z = torch.full((1, 300), float("-inf"))
    assert native.draw_bounds(z, torch.tensor([0]), *keys(1, seed=1)).tolist() == [[-torch.inf] * 3]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 1000])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_what_is_not_allowed_never_wins(vocab_size: int, share: float, level: str) -> None:
    draw = np.random.default_rng(vocab_size)
    allowed = draw.random((4, vocab_size)) < share
    padded = np.ones((4, -(-vocab_size // 32) * 32), dtype=bool)  # bits beyond the vocabulary mean nothing
    padded[:, :vocab_size] = allowed
    words = np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    rows = np.asarray([5, 0, 3, 2])  # those between have no mask
    logits = torch.randn(7, vocab_size + 3)
    logits[3, vocab_size // 2] = torch.nan
    logits[2, :vocab_size] = -torch.inf
    before = isa()
    try:
        set_isa(level)
        for kernel in (native.keep_allowed, reference.keep_allowed):
            seen = logits.clone()
            largest = kernel(seen[:, :vocab_size], rows, words)
            expected = logits.clone()
            expected[rows, :vocab_size] = torch.where(torch.from_numpy(allowed), logits[rows, :vocab_size], -torch.inf)
            torch.testing.assert_close(seen, expected, rtol=0, atol=0, equal_nan=True)  # and nothing beside
            was = logits[rows, :vocab_size].amax(1)
            torch.testing.assert_close(largest, was, rtol=0, atol=0, equal_nan=True)
    finally:
        set_isa(before)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab_size", [1, 7, 8, 24, 1003])
def test_scaling_has_the_references_bits(vocab_size: int, level: str) -> None:
    logits = torch.randn(5, vocab_size + 4)
    logits[1, 0] = float("-inf")
    largest, temperature = logits[:, :vocab_size].amax(1), torch.tensor([1.0, 0.7, 1e-3, 2.0, 0.3])
    expected, scaled, before = logits.clone(), logits.clone(), isa()
    reference.draw_scale(expected[:, :vocab_size], largest, temperature)
    try:
        set_isa(level)
        native.draw_scale(scaled[:, :vocab_size], largest, temperature)
    finally:
        set_isa(before)
    torch.testing.assert_close(scaled, expected, rtol=0, atol=0, equal_nan=True)  # and nothing beside
