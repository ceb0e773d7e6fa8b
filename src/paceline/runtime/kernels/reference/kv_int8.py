"""K and V of 8 bits, plainly: what a cache of int8 holds for one head of one token, and which numbers it stands for.

    d = max|x| / 127        code = x * (127 / max|x|), rounded to the nearest with ties to even

A number is off by at most d / 2, up to the rounding of float32. A record is its own token's and head's alone, so what a
row reads does not depend on its batch mates. What is not finite becomes NaN as a whole; magnitudes below
`LEAST_MAGNITUDE`, whose factor would overflow, become zero. Symmetric rounding to a scale per token: Xiao et al. 2022,
SmoothQuant, arXiv 2211.10438; here per token and head.

Shapes: D head_dim (a multiple of 4), leading dimensions any.
"""

from __future__ import annotations

import torch

from paceline.runtime.kv_cache import SCALE_BYTES

LEAST_MAGNITUDE = 1e-36  # csrc/int8.h
LARGEST_CODE = 127.0


def to_records(x: torch.Tensor) -> torch.Tensor:
    """x [..., D] of any float dtype -> [..., D + 4] int8: codes, then the bytes of their scale as a float32."""
    wide = x.float()
    magnitude = wide.abs().amax(-1, keepdim=True)
    finite = magnitude.isfinite()
    held = finite & (magnitude >= LEAST_MAGNITUDE)
    largest = torch.full_like(magnitude, LARGEST_CODE)  # a tensor: `number / tensor` would round twice
    codes = torch.where(held, torch.round(wide * (largest / magnitude)), 0.0).to(torch.int8)
    scale = torch.where(held, magnitude / largest, torch.where(finite, 0.0, float("nan")))
    return torch.cat((codes, scale.view(torch.int8)), -1)


def from_records(records: torch.Tensor) -> torch.Tensor:
    """[..., D + 4] int8 -> [..., D] float32."""
    scale = records[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return records[..., :-SCALE_BYTES].float().mul_(scale)
