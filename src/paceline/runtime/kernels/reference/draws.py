"""Passes over the vocabulary that a draw takes: where noise may lift an id to the top, and what a grammar forbids.

Shapes: S draws, V vocabulary, pieces of `largest.PIECE` ids.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from paceline.runtime import noise
from paceline.runtime.kernels.reference.largest import piece_max

SLAB = {"cpu": 1 << 16, "cuda": 1 << 25}  # numbers per run of passes: what fits the cache of a core, or a GPU


def draw_bounds(z: torch.Tensor, rows: torch.Tensor, multiplier: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """An upper bound of z + noise for each piece of the rows [s] int64: float32 [s, pieces].

    z [S, V] float32, not changed; multiplier and offset [S, 1] int32 as in noise.py. Kernels may differ in the last
    places: a bound is all it has to be."""
    ids = torch.arange(z.shape[1], dtype=torch.int32, device=z.device)
    bounds = []
    for part in slabs(rows, z.shape[1]):
        scores = z.index_select(0, part)
        noise.add_gumbel_bound(scores, ids, multiplier[part], offset[part])
        bounds.append(piece_max(scores))
    return torch.cat(bounds)


def draw_scale(logits: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor) -> None:
    """logits [S, V] become (logits - largest) / temperature in place; largest and temperature [S] float32."""
    logits -= largest[:, None]
    logits /= temperature[:, None]


def slabs(rows: torch.Tensor, vocab_size: int) -> Iterator[torch.Tensor]:
    """Rows in groups that several passes can go over while their numbers are near."""
    cpu = SLAB["cpu"] * torch.get_num_threads()
    size = max(1, SLAB.get(rows.device.type, cpu) // vocab_size)
    return iter(torch.split(rows, size))


def keep_allowed(logits: torch.Tensor, rows: np.ndarray, words: np.ndarray) -> torch.Tensor:
    """Logits [S, V] float32 of different rows [n] become -inf where the bit of their id is not set: words
    [n, ceil(V / 32)] uint32, the lowest bit first. Returns the largest number of each row before that, [n] float32, NaN
    where one of them is."""
    at = torch.from_numpy(rows).to(logits.device)
    before = logits[at]
    count = logits.shape[1]
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, count=count, bitorder="little")
    logits[at] = before.masked_fill(torch.from_numpy(bits == 0).to(logits.device), float("-inf"))
    return before.amax(dim=1)
