"""Products of bfloat16 in tiles of AMX: right, a row's bits its own, and blocks the same as what they stand for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.dispatch import choose

WHY_NOT = native.why_not() or ("" if native.isa() == "amx" else "this CPU has no AMX")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
if not WHY_NOT:
    from paceline.runtime.kernels.cpu.blocks import LAYOUTS, NativeBFloat16Blocks
    from paceline.runtime.kernels.cpu.linear import NativeBFloat16Linear


@pytest.mark.parametrize("bias", [False, True])
@given(rows=st.integers(0, 70), outputs=st.integers(1, 100), inputs=st.integers(1, 200), seed=st.integers(0, 9))
def test_matches_float64_within_the_error_of_one_chain_of_sums(
    bias: bool, rows: int, outputs: int, inputs: int, seed: int
) -> None:
    """Products of two bfloat16 are exact in float32; |error| <= K 2^-23 sum |x w| for K rounded sums, each off by a
    unit in the last place at most (Higham 2002, section 3.1)."""
    draw = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(rows, inputs, generator=draw), torch.randn(outputs, inputs, generator=draw).bfloat16()
    offset = torch.randn(outputs, generator=draw) if bias else None
    out = NativeBFloat16Linear.apply(x, NativeBFloat16Linear.pack(weight), offset)
    entering = x.bfloat16().double()
    exact = entering @ weight.double().T
    bound = inputs * 2.0**-23 * (entering.abs() @ weight.double().abs().T)
    if offset is not None:
        exact += offset.double()
        bound += 2.0**-23 * exact.abs()
    assert bool(((out.double() - exact).abs() <= bound + 1e-30).all())


def test_a_row_has_the_same_bits_whatever_its_mates_and_threads(threads: int) -> None:
    for outputs, inputs in [(960, 576), (97, 80), (48, 1536)]:
        draw = torch.Generator().manual_seed(outputs)
        x = torch.randn(150, inputs, generator=draw)
        packed = NativeBFloat16Linear.pack(torch.randn(outputs, inputs, generator=draw).bfloat16())
        bias = torch.randn(outputs, generator=draw)
        torch.set_num_threads(1)
        alone = torch.cat([NativeBFloat16Linear.apply(row[None], packed, bias) for row in x])
        torch.set_num_threads(threads)
        for count in (*range(1, 20), 31, 32, 33, 48, 49, 64, 121):
            part = NativeBFloat16Linear.apply(x[29 : 29 + count], packed, bias)
            assert torch.equal(part, alone[29 : 29 + count]), count


@pytest.mark.parametrize("shape", [(1, 1), (15, 3), (16, 32), (33, 80)])
def test_packing_loses_nothing(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).bfloat16()
    packed = NativeBFloat16Linear.pack(weight.t().contiguous().t())  # from any strides
    assert torch.equal(NativeBFloat16Linear.unpack(packed), weight)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] - 1])
    assert torch.equal(NativeBFloat16Linear.gather(packed, ids), weight[ids])
    with pytest.raises(IndexError):
        NativeBFloat16Linear.gather(packed, torch.tensor([shape[0]]))


def test_what_is_not_finite_reaches_its_own_row_alone() -> None:
    x = torch.ones(20, 40)
    x[3, 7], x[18, 0] = float("nan"), float("inf")
    out = NativeBFloat16Linear.apply(x, NativeBFloat16Linear.pack(torch.ones(17, 40).bfloat16()), None)
    assert bool(out[3].isnan().all())
    assert bool(out[18].isinf().all())
    assert bool((out[[row for row in range(20) if row not in (3, 18)]] == 40).all())


@pytest.mark.parametrize("ggml_type", list(LAYOUTS) if not WHY_NOT else [])
def test_blocks_have_the_bits_of_the_weights_they_stand_for(ggml_type: int) -> None:
    block, size = LAYOUTS[ggml_type]
    draw = np.random.default_rng(ggml_type)
    for rows, outputs, blocks in [(1, 97, 1), (2, 64, 2), (16, 40, 3), (17, 33, 1), (40, 130, 1)]:
        raw = draw.integers(0, 256, (outputs * blocks, size), dtype=np.uint8)
        scales = draw.uniform(-0.1, 0.1, (len(raw), 2)).astype(np.float16).view(np.uint8).reshape(len(raw), 4)
        raw[:, :4] = scales
        if ggml_type == 14:
            raw[:, -2:] = scales[:, :2]
        packed = NativeBFloat16Blocks.pack(raw.reshape(-1), ggml_type, outputs, blocks * block)
        weight = NativeBFloat16Blocks.unpack(packed)
        x = torch.from_numpy(draw.standard_normal((rows, blocks * block), dtype=np.float32))
        expected = NativeBFloat16Linear.apply(x, NativeBFloat16Linear.pack(weight.bfloat16()), None)
        assert torch.equal(NativeBFloat16Blocks.apply(x, packed, None), expected)


def test_it_serves_bfloat16_and_below_its_level_something_else_does() -> None:
    assert choose("linear", "cpu", torch.bfloat16, "fast").label == "native-amx"
    assert choose("gguf_linear", "cpu", torch.bfloat16, "fast").load() is NativeBFloat16Blocks
    before = native.isa()
    try:
        native.set_isa("vnni512")
        assert choose("linear", "cpu", torch.bfloat16, "fast").load() is not NativeBFloat16Linear
        assert choose("gguf_linear", "cpu", torch.bfloat16, "fast").load() is not NativeBFloat16Blocks
    finally:
        native.set_isa(before)
