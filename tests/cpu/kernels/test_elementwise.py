"""Norm, rotation and activation: fast kernels agree with the reference, whose bits do not depend on the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from paceline.runtime.kernels.reference import elementwise as reference
from paceline.runtime.kernels.torch_cpu import elementwise as fast

DTYPES = [torch.float32, torch.bfloat16]
COUNTS = [1, 2, 3, 16, 17, 100]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [reference, fast])
def test_rms_norm(module: Any, dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 3, 48).to(dtype), torch.rand(3, 48) + 0.5
    expected = F.rms_norm(x.float(), (48,), eps=1e-5) * weight
    out = module.rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=0.01 if dtype != torch.float32 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [reference, fast])
def test_rope_turns_pairs_in_place_and_nothing_else(module: Any, dtype: torch.dtype) -> None:
    whole = torch.randn(5, 7, 16).to(dtype)
    kept, turned = whole.clone(), whole[:, :4]
    angles = torch.rand(5, 1, 8) * 6
    cos, sin = angles.cos(), angles.sin()
    first, second = turned.float().chunk(2, -1)
    expected = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    module.rope(turned, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    torch.testing.assert_close(whole[:, :4].float(), expected, rtol=0.01 if dtype != torch.float32 else 1e-5, atol=1e-5)
    assert torch.equal(whole[:, 4:], kept[:, 4:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", [reference, fast])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated(module: Any, activation: str, dtype: torch.dtype) -> None:
    gate_up = torch.randn(5, 96).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda g: F.gelu(g, approximate="tanh")}[activation]
    out = module.gated(gate_up, activation)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), act(gate) * up, rtol=0.02 if dtype != torch.float32 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [40, 100, 1536])
def test_reference_rows_are_independent(size: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight = torch.randn(120, 2 * size), torch.rand(2 * size)
        normed = reference.rms_norm(x, weight, 1e-6)
        active = {name: reference.gated(x, name) for name in ("silu", "gelu", "gelu_tanh")}
        for count in COUNTS:
            part = x[7 : 7 + count].clone()
            assert torch.equal(reference.rms_norm(part, weight, 1e-6), normed[7 : 7 + count])
            for name, whole in active.items():
                assert torch.equal(reference.gated(part, name), whole[7 : 7 + count]), name
    finally:
        torch.set_num_threads(before)
