"""Integer products at every level of instructions: the bits of AVX2 and of the model, for any number of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cpu.kernels.int8_model import product, quantised
from tests.cpu.kernels.test_native_blocks import TYPES, blocks

from paceline.runtime.kernels.cpu import native

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
if not native.why_not():
    from tests.cpu.kernels.test_native_int8 import one_group, packed

    from paceline.runtime.kernels.cpu.blocks import BlockPanels, NativeInt8Blocks


@contextmanager
def capped(level: str) -> Iterator[None]:
    before = native.isa()
    native.set_isa(level)
    try:
        yield
    finally:
        native.set_isa(before)


def with_avx2(x: torch.Tensor, weight: BlockPanels, bias: torch.Tensor | None = None) -> torch.Tensor:
    with capped("avx2"):
        return NativeInt8Blocks.apply(x, weight, bias)


def random_rows(num_rows: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """Rows of very different sizes."""
    draw = torch.Generator().manual_seed(seed)
    size = 10.0 ** torch.randint(-6, 4, (num_rows, 1), generator=draw)
    return torch.randn(num_rows, inputs, generator=draw) * size


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.usefixtures("level")
def test_every_level_has_the_bits_of_the_model(name: str) -> None:
    """Five and forty groups of inputs, or the fewest that there can be: one run of groups, and several."""
    for outputs, groups in [(17, 1), (33, 5), (18, 40)]:
        inputs = max(one_group(name), groups * 32)
        inputs = -(-inputs // one_group(name)) * one_group(name)
        raw = blocks(name, outputs, inputs, seed=outputs)
        weight, bias = packed(name, raw, outputs, inputs), torch.randn(outputs)
        x = random_rows(37, inputs)
        expected = product(x.numpy(), quantised(name, raw, outputs, inputs), bias.numpy())
        for num_rows in (1, 7, 12, 14, 37):
            ours = NativeInt8Blocks.apply(x[:num_rows], weight, bias).numpy()
            assert np.array_equal(ours, expected[:num_rows]), (outputs, inputs, num_rows)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.usefixtures("level")
def test_every_number_of_rows_has_the_bits_of_avx2(name: str) -> None:
    weight, x = packed(name, blocks(name, 35, 768, seed=2), 35, 768), random_rows(300, 768)
    expected = with_avx2(x, weight)
    for num_rows in (*range(1, 71), 130, 300):
        assert torch.equal(NativeInt8Blocks.apply(x[:num_rows], weight, None), expected[:num_rows]), num_rows


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.usefixtures("level")
def test_threads_change_no_bit(name: str) -> None:
    weight, x = packed(name, blocks(name, 300, 512, seed=3), 300, 512), random_rows(70, 512)
    expected, before = with_avx2(x, weight), torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            for num_rows in (1, 11, 70):
                assert torch.equal(NativeInt8Blocks.apply(x[:num_rows], weight, None), expected[:num_rows])
    finally:
        torch.set_num_threads(before)


@given(
    name=st.sampled_from(TYPES),
    outputs=st.integers(1, 100),
    blocks_of_inputs=st.integers(1, 5),
    num_rows=st.integers(1, 90),
    with_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_levels_agree(
    name: str, outputs: int, blocks_of_inputs: int, num_rows: int, with_bias: bool, seed: int
) -> None:
    inputs = blocks_of_inputs * one_group(name)
    weight = packed(name, blocks(name, outputs, inputs, seed), outputs, inputs)
    bias = torch.randn(outputs) if with_bias else None
    x = random_rows(num_rows, inputs, seed)
    expected = with_avx2(x, weight, bias)
    for level in native.isa_levels():
        with capped(level):
            assert torch.equal(NativeInt8Blocks.apply(x, weight, bias), expected), level


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q6_K"])
@pytest.mark.usefixtures("level")
def test_a_row_is_rounded_to_the_same_bytes(name: str) -> None:
    """Also what is not finite, subnormal or below the least magnitude. One row lies alike at all levels."""
    inputs, weight = 1280, packed(name, blocks(name, 16, 1280), 16, 1280)
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(1, inputs, generator=draw) * 10.0 ** torch.randint(-38, 38, (1, inputs), generator=draw)
    x = torch.where(torch.rand(1, inputs, generator=draw) < 0.3, 0.0, x)
    x[0, 40:64], x[0, 70], x[0, 100], x[0, 130] = 1e-37, torch.inf, torch.nan, -torch.inf
    x[0, 160:192] = torch.arange(-16, 16) + 0.5  # halves between codes: to even
    x[0, 191] = 127

    def rounded() -> bytes:
        size, out = native.library().paceline_cpu_linear_scratch(weight.kind, 1, inputs), torch.zeros(1, 16)
        rows = ctypes.create_string_buffer(size)
        native.library().paceline_cpu_linear(
            x.data_ptr(), weight.data.data_ptr(), None, out.data_ptr(), rows, 1, inputs, 16, inputs, 16, weight.kind, 1
        )
        return rows.raw

    ours = rounded()
    with capped("avx2"):
        assert rounded() == ours


def test_tiles_of_other_libraries_and_ours_do_not_meet() -> None:
    """Both set the tiles of a thread for themselves. Where there are none this is a plain product."""
    weight, x = packed("Q8_0", blocks("Q8_0", 64, 512), 64, 512), random_rows(40, 512)
    a, b = torch.randn(64, 512).bfloat16(), torch.randn(512, 96).bfloat16()
    expected, other = NativeInt8Blocks.apply(x, weight, None), a @ b
    for _ in range(3):
        assert torch.equal(NativeInt8Blocks.apply(x, weight, None), expected)
        assert torch.equal(a @ b, other)
