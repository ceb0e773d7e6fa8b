"""The noise of a draw: a pure function of (seed, choice, output position, token id). No generator, no state.

A token is drawn by the Gumbel-max rule: the id with the largest `logit / temperature + noise(id)` is a sample of the
softmax. Because the noise depends on nothing else, neither batch mates nor preemption, chunking or speculation change
the text of a request.

    key(seed, choice)     64 bits, SplitMix64's finaliser applied twice
    key(.., position)     output number `position` of the SplitMix64 stream that starts at that key; its halves give
                          an odd multiplier and an offset
    word(.., id)          lowbias32(id * multiplier + offset), 32 bits
    w = (top 24 bits + 0.5) / 2**24,  noise = -log(-log(1 - w))

So the noise lies in [-2.853, 17.329], and an id whose scaled logit is more than 20.182 below the best one never wins.
Integer arithmetic is exact and the same everywhere; the two logarithms are in double precision.

Sources: SplitMix64 and keyed increments, Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
(2014); lowbias32, Chris Wellons, "Prospecting for hash functions" (2018, public domain); Gumbel-max, Gumbel (1954).

Shapes: S draws, n ids per draw.
"""

from __future__ import annotations

import math

import numpy as np
import torch

NOISE_BITS = 24
NOISE_MIN = -math.log(-math.log(2.0 ** -(NOISE_BITS + 1)))
NOISE_MAX = -math.log(-math.log1p(-(2.0 ** -(NOISE_BITS + 1))))
NOISE_SPAN = NOISE_MAX - NOISE_MIN

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_LN2 = math.log(2.0)
# float32 rounding of the bound is below 1e-5 at these magnitudes; the slack makes it a true upper bound
_BOUND_SLACK = 1e-3


def _word(value: int) -> torch.Tensor:
    # a tensor, because a Python number would be converted anew in every operation; signed, because torch's int32 is
    return torch.tensor(value - (1 << 32) if value >> 31 else value, dtype=torch.int32)


_ROUNDS = tuple(  # lowbias32: shift, mask of the bits it leaves, factor
    (_word(shift), _word((1 << (32 - shift)) - 1), None if factor is None else _word(factor))
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))
)
_TOP = (_word(31 - NOISE_BITS), _word((1 << (NOISE_BITS + 1)) - 2), _word(1))


def _mix64(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_A) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_B) & _MASK
    return value ^ (value >> 31)


def choice_key(seed: int, choice: int) -> int:
    """64-bit key of one choice of one request. `seed` is taken modulo 2**64."""
    return _mix64(_mix64(seed + _GOLDEN) + (choice + 1) * _GOLDEN)


def position_keys(keys: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Multiplier (odd) and offset of each draw, int32 [S], from choice keys uint64 [S] and output positions [S]."""
    key = keys + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(_MIX_A)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(_MIX_B)
    key ^= key >> np.uint64(31)
    multiplier = ((key >> np.uint64(32)) | np.uint64(1)).astype(np.uint32)
    return multiplier.view(np.int32), key.astype(np.uint32).view(np.int32)


def hash_words(ids: torch.Tensor, multiplier: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """lowbias32 of ids [n] or [S, n] under multiplier and offset [S, 1], all int32; gives int32 [S, n].

    Shifts of negative numbers copy the sign, so each is followed by a mask.
    """
    x = ids * multiplier
    x += offset
    scratch = torch.empty_like(x)
    for shift, mask, factor in _ROUNDS:
        torch.bitwise_right_shift(x, shift, out=scratch)
        scratch &= mask
        x ^= scratch
        if factor is not None:
            x *= factor
    return x


def _odd_numerators(words: torch.Tensor) -> torch.Tensor:
    """2**25 * w as an odd int32, in place of `words`."""
    shift, mask, one = _TOP
    words >>= shift
    words &= mask
    words |= one
    return words


def gumbel(ids: torch.Tensor, multiplier: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """The noise of ids [n] or [S, n], float64 [S, n]."""
    w = _odd_numerators(hash_words(ids, multiplier, offset)).double()
    w *= -(2.0 ** -(NOISE_BITS + 1))
    return w.log1p_().neg_().log_().neg_()


def add_gumbel_bound(scaled: torch.Tensor, ids: torch.Tensor, multiplier: torch.Tensor, offset: torch.Tensor) -> None:
    """Add to `scaled` (float32 [S, n]) an upper bound of the noise of ids [n], without any logarithm.

    -log(1 - w) > w gives noise <= -log(w), and the bits of a float, read as an integer, bound its logarithm from
    below: log2(x) >= bits / 2**23 - 127. Near the top of the range, where winners are, the bound is within 0.06.
    """
    bits = _odd_numerators(hash_words(ids, multiplier, offset)).float().view(torch.int32)
    scaled.add_(bits, alpha=-_LN2 / (1 << 23))
    scaled += _LN2 * (127 + NOISE_BITS + 1) + _BOUND_SLACK
