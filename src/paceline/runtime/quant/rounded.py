"""Float weights rounded to 8 bits: blocks of the GGUF type Q8_0, 32 weights and a scale in half precision."""

from __future__ import annotations

import numpy as np
import torch

from paceline.runtime.layers.linear import StoredBlocks

GROUP, Q8_0 = 32, 8  # weights of a block, number of the type


def round_to_8_bits(weight: torch.Tensor) -> StoredBlocks:
    """[out_features, in_features] of any float dtype, in_features a multiple of 32.

    A group's scale is max|w| / 127 in half precision, its codes w / scale to the nearest integer with ties to even, so
    a weight is off by at most half a scale. Half precision has no number below 6e-8, and from there to 6e-5 only
    multiples of it: a scale that was rounded down so far that 127 steps miss the largest weight by more than half of
    one is the next number up. Weights below 3e-8 are zero.
    """
    rows, columns = weight.shape
    groups = weight.float().reshape(-1, GROUP)
    largest = groups.abs().amax(1, keepdim=True)
    scale = (largest / 127).half()
    short = largest > 127.5 * scale.float()
    scale = (scale.view(torch.int16) + short.to(torch.int16)).view(torch.half)  # halves above 0 order as integers do
    step = scale.float()
    codes = torch.where(step > 0, groups / step, 0.0).round_().clamp_(-127, 127).to(torch.int8)
    blocks = torch.cat([scale.view(torch.int8), codes], dim=1)
    return StoredBlocks(blocks.numpy().view(np.uint8).reshape(-1), Q8_0, (rows, columns))
