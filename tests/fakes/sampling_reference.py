"""The sampling rules again, one row at a time in plain numpy double precision: slow, obvious, independent of torch."""

from __future__ import annotations

import numpy as np

from paceline.contracts.request import SamplingParams

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """First output of the SplitMix64 stream that starts at `state` - golden ratio, that is, its finaliser."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def reference_words(seed: int, choice: int, position: int, ids: np.ndarray) -> np.ndarray:
    """The 32-bit hash words of token ids, uint32."""
    golden = 0x9E3779B97F4A7C15
    key = splitmix64(splitmix64(splitmix64(seed + golden) + (choice + 1) * golden) + (position + 1) * golden)
    x = ids.astype(np.uint32) * np.uint32((key >> 32) | 1) + np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def reference_noise(seed: int, choice: int, position: int, ids: np.ndarray) -> np.ndarray:
    w = ((reference_words(seed, choice, position, ids) >> np.uint32(8)).astype(np.float64) + 0.5) / 2**24
    return -np.log(-np.log1p(-w))


def mass_before(order: np.ndarray, p: np.ndarray) -> np.ndarray:
    """For each entry, the sum of `p` over entries strictly smaller in `order`."""
    at = np.argsort(order, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(p[at])])
    return sums[np.searchsorted(order[at], order, side="left")]


def reference_kept(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Scaled logits z [V] and which ids the filters keep [V]."""
    z = ((logits.astype(np.float32) - logits.max()) / np.float32(params.temperature)).astype(np.float64)
    keep = np.isfinite(z)
    if params.top_k > 0 and params.top_k < keep.sum():
        keep &= z >= np.sort(z)[::-1][params.top_k - 1]
    p = np.where(keep, np.exp(z), 0.0)
    if params.top_p < 1.0:
        keep &= mass_before(-z, p) < params.top_p * p.sum()
    if params.min_p > 0.0:
        keep &= np.exp(z) >= params.min_p
    if params.typical_p < 1.0:
        p = np.where(keep, np.exp(z), 0.0)
        p /= p.sum()
        logp = np.log(p, out=np.zeros_like(p), where=p > 0)
        distance = np.where(keep, np.abs(-logp + (p * logp).sum()), np.inf)
        keep &= mass_before(distance, p) < params.typical_p
    return z, keep


def reference_token(logits: np.ndarray, params: SamplingParams, choice: int, position: int) -> int:
    """The token the rules of runtime/sampler.py draw from processed logits [V]."""
    if params.greedy or params.top_k == 1:
        return int(logits.argmax())
    z, keep = reference_kept(logits, params)
    assert params.seed is not None
    score = z + reference_noise(params.seed, choice, position, np.arange(len(logits)))
    return int(np.where(keep, score, -np.inf).argmax())
