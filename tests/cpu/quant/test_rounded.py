"""Float weights rounded to blocks of 8 bits."""

from __future__ import annotations

import pytest
import torch
from tests.cpu.kernels.int8_model import product, quantised

from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.reference.blocks import ReferenceBlocks
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.layers.linear import LinearSpec, Part
from paceline.runtime.quant.rounded import Q8_0, round_to_8_bits


def floats_of(weight: torch.Tensor) -> torch.Tensor:
    stored = round_to_8_bits(weight)
    assert stored.shape == tuple(weight.shape)
    assert stored.ggml_type == Q8_0
    return ReferenceBlocks.pack(stored.raw, Q8_0, *stored.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_off_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    weight = (torch.randn(40, 96) * 10.0 ** torch.randint(-2, 4, (40, 1))).to(dtype)
    step = weight.float().abs().reshape(40, 3, 32).amax(2, keepdim=True) / 127 * (1 + 2.0**-11)
    error = (floats_of(weight) - weight.float()).abs().reshape(40, 3, 32)
    assert bool((error <= 0.5001 * step).all())


@pytest.mark.parametrize("size", [1e-3, 1e-5, 4e-6, 1e-6, 1e-7, 3e-8])
def test_small_groups_have_the_steps_that_half_precision_has(size: float) -> None:
    """A scale rounded down would clip the largest weights: they would be off by many steps."""
    weight = (torch.rand(400, 32) * 2 - 1) * torch.linspace(0.2, 1, 400)[:, None] * size
    error = (floats_of(weight) - weight).abs().amax(1)
    least = 2.0**-24  # of half precision; scales this small are multiples of it
    step = (weight.abs().amax(1) / 127 / least).ceil() * least
    assert bool((error <= 0.5001 * step).all())


def test_what_8_bits_hold_is_kept() -> None:
    weight = torch.randint(-127, 128, (8, 64)).float() / 64
    weight[:, ::32] = 127 / 64
    assert torch.equal(floats_of(weight), weight)
    assert not floats_of(torch.zeros(2, 32)).any()
    assert not floats_of(torch.full((2, 32), 2.9e-8)).any()


@pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
@pytest.mark.parametrize("columns", [96, 80])
def test_layers_round_what_comes_as_floats_where_whole_groups_fit(columns: int) -> None:
    from paceline.runtime.kernels.cpu.blocks import BlockPanels
    from paceline.runtime.quant.int8 import Int8Activations

    spec = LinearSpec(columns, (Part("a", 24), Part("b", 8)), False, torch.float32, torch.device("cpu"))
    weight = Int8Activations(rounds=True).create(spec, BuildContext())
    whole = torch.randn(32, columns)
    weight.load("a", whole[:24].bfloat16())
    weight.load("b", whole[24:])
    whole[:24] = whole[:24].bfloat16().float()
    x = torch.randn(5, columns)
    if columns % 32:
        assert not any(isinstance(segment, BlockPanels) for segment in weight.segments)
        assert torch.equal(weight.dequantize("b"), whole[24:])
        return
    assert torch.equal(weight.dequantize("a"), floats_of(whole[:24]))
    model = quantised("Q8_0", round_to_8_bits(whole).raw, 32, columns)
    assert weight.apply(x).numpy().tolist() == product(x.numpy(), model).tolist()
