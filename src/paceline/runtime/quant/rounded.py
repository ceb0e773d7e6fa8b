"""Float weights rounded to 8 bits: blocks of the GGUF type Q8_0, 32 weights and a scale in half precision."""

from __future__ import annotations

import numpy as np
import torch

from paceline.runtime.layers.linear import StoredBlocks

GROUP, Q8_0 = 32, 8  # weights of a block, number of the type


def round_to_8_bits(weight: torch.Tensor) -> StoredBlocks:
    """[out_features, in_features] of any float dtype, in_features a multiple of 32.

    A group's scale is max|w| / 127 in half precision, its codes w / scale to the nearest integer with ties to even. So
    a weight is off by at most half a scale. That needs a scale that half precision has: groups whose largest weight is
    below 0.008 have a coarser one (its steps are 6e-8), and below 4e-6 they are zero.
    """
    rows, columns = weight.shape
    groups = weight.float().reshape(-1, GROUP)
    scale = (groups.abs().amax(1, keepdim=True) / 127).half()
    step = scale.float()
    codes = torch.where(step > 0, groups / step, 0.0).round_().clamp_(-127, 127).to(torch.int8)
    blocks = torch.cat([scale.view(torch.int8), codes], dim=1)
    return StoredBlocks(blocks.numpy().view(np.uint8).reshape(-1), Q8_0, (rows, columns))
