"""KV written natively lies where the reference puts it, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.pure.config.specs import SMOLLM2

from paceline.contracts.kv import KVLayout, plan_kv_groups
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.cpu.kv_write import write_kv
from paceline.runtime.kernels.reference.kv_write import write_kv as reference
from paceline.runtime.kv_cache import KVCache

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [0, 1, 7, 100])
@pytest.mark.parametrize("source", ["whole", "slice of q, k and v", "heads apart"])
def test_every_byte_of_the_cache_is_as_the_reference_leaves_it(
    dtype: torch.dtype, num_tokens: int, source: str
) -> None:
    groups = plan_kv_groups(SMOLLM2, 16, torch.finfo(dtype).bits // 8)
    layout = KVLayout(groups=groups, num_blocks=12, dtype=str(dtype).removeprefix("torch."))
    mine, theirs = (KVCache(layout, SMOLLM2, dtype).layer_cache(1) for _ in range(2))
    heads, dim = 2 * SMOLLM2.num_kv_heads, SMOLLM2.head_dim
    kv = {
        "whole": torch.randn(num_tokens, heads, dim),
        "slice of q, k and v": torch.randn(num_tokens, 3 * heads, dim)[:, heads : 2 * heads],
        "heads apart": torch.randn(num_tokens, 2 * heads, dim)[:, ::2],
    }[source].to(dtype)
    slots = torch.from_numpy(np.random.default_rng(0).permutation(12 * 16)[:num_tokens] + 16)
    write_kv(kv, mine, slots)
    reference(kv, theirs, slots)
    assert torch.equal(mine.kv, theirs.kv)
    assert bool(mine.kv.any()) == (num_tokens > 0)
