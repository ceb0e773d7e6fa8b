"""Linear kernels agree, and the reference's rows do not know each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.runtime.kernels.reference.linear import ReferenceLinear
from paceline.runtime.kernels.torch_cpu.linear import PackedLinear, PlainLinear, WidenedLinear

COUNTS = [1, 2, 3, 5, 8, 11, 12, 13, 16, 17, 31, 33, 64, 100, 257]
SHAPES = [(960, 576), (576, 576), (576, 1536), (97, 80)]


@pytest.mark.parametrize("kernel", [ReferenceLinear, PackedLinear, PlainLinear])
@pytest.mark.parametrize("bias", [False, True])
def test_matches_float64(kernel: Any, bias: bool) -> None:
    x, weight = torch.randn(7, 80), torch.randn(33, 80)
    offset = torch.randn(33) if bias else None
    expected = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    packed = kernel.pack(weight.clone())
    torch.testing.assert_close(kernel.apply(x, packed, offset), expected.float(), rtol=1e-5, atol=1e-4)
    assert torch.equal(kernel.unpack(packed), weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", [ReferenceLinear, PlainLinear, WidenedLinear])
def test_half_precision(kernel: Any, dtype: torch.dtype) -> None:
    x, weight, offset = torch.randn(7, 80).to(dtype), torch.randn(33, 80).to(dtype), torch.randn(33).to(dtype)
    expected = x.double() @ weight.double().T + offset.double()
    out = kernel.apply(x, kernel.pack(weight), offset)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_rows_are_independent(dtype: torch.dtype, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows, columns in SHAPES if dtype == torch.float32 else SHAPES[1:2]:
            weight, x, bias = (
                torch.randn(rows, columns).to(dtype),
                torch.randn(300, columns).to(dtype),
                torch.randn(rows).to(dtype),
            )
            whole = ReferenceLinear.apply(x, weight, bias)
            for count in COUNTS:
                part = ReferenceLinear.apply(x[29 : 29 + count].clone(), weight, bias)
                assert torch.equal(part, whole[29 : 29 + count]), (rows, columns, count)
    finally:
        torch.set_num_threads(before)
