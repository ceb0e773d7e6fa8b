"""Products with GGUF blocks: the numbers of the blocks' own definition, and the bits of the float product."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.hub.ggml_types import GGML_TYPES
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.cpu.linear import NativeLinear
from paceline.runtime.kernels.reference.blocks import ReferenceBlocks
from paceline.runtime.kv_cache import Workspace

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
if not native.why_not():
    from paceline.runtime.kernels.cpu.blocks import LAYOUTS, NativeBlocks

NUMBERS = {t.name: number for number, t in GGML_TYPES.items()}
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
HALVES = {
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}  # where scales stand in a block


def blocks(name: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random blocks: any bits in codes and group scales; finite block scales of both signs, zero included."""
    kind, draw = GGML_TYPES[NUMBERS[name]], np.random.default_rng(seed)
    count = rows * columns // kind.block_size
    raw = draw.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    for at in HALVES.get(name, (0,)):
        scale = (draw.standard_normal(count) * 10.0 ** draw.integers(-7, 1, count)).astype(np.float16)
        scale[:: max(2, count // 3)] = 0
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(count, 2)
    return raw.reshape(-1)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_packing_keeps_every_number(name: str, rows: int) -> None:
    raw = blocks(name, rows, 512, seed=rows)
    weight = ReferenceBlocks.pack(raw, NUMBERS[name], rows, 512)
    packed = NativeBlocks.pack(raw, NUMBERS[name], rows, 512)
    assert torch.equal(NativeBlocks.unpack(packed), weight)
    ids = torch.tensor([rows - 1, 0, rows - 1])
    assert torch.equal(NativeBlocks.gather(packed, ids), weight[ids])


@pytest.mark.parametrize("name", TYPES)
def test_products_have_the_bits_of_the_float_product(name: str) -> None:
    for outputs, inputs in [(33, 256), (80, 768)]:
        raw = blocks(name, outputs, inputs)
        packed = NativeBlocks.pack(raw, NUMBERS[name], outputs, inputs)
        plain = NativeLinear.pack(ReferenceBlocks.pack(raw, NUMBERS[name], outputs, inputs))
        bias = torch.randn(outputs)
        for num_rows in (0, 1, 2, 3, 4, 6, 7, 8, 9, 13, 64, 121):
            x = torch.randn(num_rows, inputs)
            for offset in (None, bias):
                assert torch.equal(NativeBlocks.apply(x, packed, offset), NativeLinear.apply(x, plain, offset)), (
                    num_rows
                )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_whatever_its_mates_and_threads(threads: int) -> None:
    packed = NativeBlocks.pack(blocks("Q4_1", 200, 576), NUMBERS["Q4_1"], 200, 576)
    x, before = torch.randn(40, 576), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([NativeBlocks.apply(row[None], packed, None) for row in x])
        torch.set_num_threads(threads)
        for count in (1, 2, 3, 5, 8, 9, 17, 40):
            assert torch.equal(NativeBlocks.apply(x[:count], packed, None), alone[:count])
    finally:
        torch.set_num_threads(before)


def test_results_agree_with_the_reference_product() -> None:
    raw = blocks("Q8_0", 48, 64)
    x = torch.randn(5, 64)
    ours = NativeBlocks.apply(x, NativeBlocks.pack(raw, NUMBERS["Q8_0"], 48, 64), None)
    weight = ReferenceBlocks.pack(raw, NUMBERS["Q8_0"], 48, 64)
    exact = x.double() @ weight.double().T
    bound = 65 * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)  # Higham 2002, section 3.1
    assert bool(((ours.double() - exact).abs() <= bound + 1e-30).all())
    assert bool(((ReferenceBlocks.apply(x, weight, None).double() - exact).abs() <= bound + 1e-30).all())


def test_neighbours_of_one_kind_join() -> None:
    first, second = blocks("Q5_0", 32, 64, 1), blocks("Q8_0", 24, 64, 2)  # both bytes with a half scale
    pieces = [NativeBlocks.pack(first, NUMBERS["Q5_0"], 32, 64), NativeBlocks.pack(second, NUMBERS["Q8_0"], 24, 64)]
    both = NativeBlocks.joined(pieces[0], pieces[1])
    assert both is not None
    assert torch.equal(NativeBlocks.unpack(both), torch.cat([NativeBlocks.unpack(p) for p in pieces]))
    assert NativeBlocks.joined(pieces[1], pieces[0]) is None, "24 outputs end within a panel"
    assert NativeBlocks.joined(pieces[0], NativeBlocks.pack(blocks("Q4_0", 16, 64), NUMBERS["Q4_0"], 16, 64)) is None


def test_rows_may_lie_apart_on_both_sides_and_results_in_scratch_memory() -> None:
    packed = NativeBlocks.pack(blocks("Q4_0", 40, 32), NUMBERS["Q4_0"], 40, 32)
    wide = torch.randn(9, 70)
    expected = NativeBlocks.apply(wide[:, :32].contiguous(), packed, None)
    out = torch.zeros(9, 50)
    NativeBlocks.apply_into(wide[:, :32], packed, None, out[:, 4:44])
    assert torch.equal(out[:, 4:44], expected)
    assert not out[:, :4].any()
    assert not out[:, 44:].any()
    assert torch.equal(NativeBlocks.apply(wide[:, :32], packed, None, Workspace()), expected)


def test_what_the_native_code_would_read_outside_of_is_refused() -> None:
    packed = NativeBlocks.pack(blocks("Q4_0", 33, 64), NUMBERS["Q4_0"], 33, 64)
    for x, bias in [(torch.randn(2, 32), None), (torch.randn(64), None), (torch.randn(2, 64), torch.randn(32))]:
        with pytest.raises(AssertionError):
            NativeBlocks.apply(x, packed, bias)
    with pytest.raises(AssertionError):
        NativeBlocks.apply_into(torch.randn(2, 64), packed, None, torch.empty(3, 33))
    with pytest.raises(IndexError, match="row 33 of a weight with 33 rows"):
        NativeBlocks.gather(packed, torch.tensor([0, 33]))


@pytest.mark.parametrize("name", TYPES)
def test_blocks_that_do_not_fill_the_shape_are_not_packed(name: str) -> None:
    """The native code believes the shape: half a block too few would be read, and written, outside."""
    size, raw = GGML_TYPES[NUMBERS[name]].block_size, blocks(name, 4, 256)
    for rows, columns in [(5, 256), (3, 256), (8, 256 - size // 2), (4, 0), (256 * 4 // (size // 2), size // 2)]:
        with pytest.raises(AssertionError):
            NativeBlocks.pack(raw, NUMBERS[name], rows, columns)
    with pytest.raises(AssertionError):
        NativeBlocks.pack(raw.view(np.int8), NUMBERS[name], 4, 256)


def test_types_without_a_packing_are_named() -> None:
    taken = {name for name, number in NUMBERS.items() if NativeBlocks.takes(number)}
    assert taken == set(TYPES)
    sizes = {number: (GGML_TYPES[number].block_size, GGML_TYPES[number].block_bytes) for number in LAYOUTS}
    assert sizes == LAYOUTS
    assert {NUMBERS[name] for name in TYPES} == set(LAYOUTS)
