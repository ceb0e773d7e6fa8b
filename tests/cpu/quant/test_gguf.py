"""Layers whose weights stay in GGUF blocks: any mix of types, in any order of loading."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.cpu.kernels.int8_model import product, quantised
from tests.cpu.kernels.test_native_blocks import NUMBERS, blocks

from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.cpu.linear import NativeLinear
from paceline.runtime.kernels.reference.blocks import ReferenceBlocks
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.layers.build import BuildContext
from paceline.runtime.layers.linear import LinearSpec, Part, StoredBlocks

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
if not native.why_not():
    from paceline.runtime.quant.gguf import BlockWeight, GgufBlocks
    from paceline.runtime.quant.int8 import Int8Activations

COLUMNS = 256
Mix = list[tuple[str, str, int]]  # (name, type, rows)
MIXES: list[Mix] = [
    [("q", "Q4_1", 64), ("k", "Q4_1", 32), ("v", "Q4_1", 32)],  # one segment
    [("q", "Q4_K", 64), ("k", "Q4_K", 16), ("v", "Q6_K", 16)],  # two
    [("gate", "Q5_0", 40), ("up", "Q5_0", 40)],  # rows that end within a panel
    [("a", "F32", 24), ("b", "Q8_0", 8), ("c", "Q8_0", 5)],  # floats beside blocks
]


def made(
    mix: Mix, *, bias: bool = False, method: GgufBlocks | None = None
) -> tuple[BlockWeight, torch.Tensor, torch.Tensor | None]:
    """The weight, its floats, its bias."""
    parts = tuple(Part(name, rows) for name, _, rows in mix)
    spec = LinearSpec(COLUMNS, parts, bias, torch.float32, torch.device("cpu"))
    weight = (method or GgufBlocks()).create(spec, BuildContext())
    floats = {}
    for index, (name, kind, rows) in reversed(list(enumerate(mix))):  # the order of a file is not that of the parts
        if kind == "F32":
            floats[name] = torch.randn(rows, COLUMNS)
            weight.load(name, floats[name])
        else:
            raw = blocks(kind, rows, COLUMNS, seed=index)
            floats[name] = ReferenceBlocks.pack(raw, NUMBERS[kind], rows, COLUMNS)
            weight.load(name, StoredBlocks(raw, NUMBERS[kind], (rows, COLUMNS)))
    whole = torch.cat([floats[name] for name, _, _ in mix])
    offset = torch.randn(len(whole)) if bias else None
    if offset is not None:
        begin = 0
        for name, _, rows in mix:
            weight.load_bias(name, offset[begin : begin + rows])
            begin += rows
    return weight, whole, offset


@pytest.mark.parametrize("mix", MIXES, ids=["same", "two", "odd", "floats"])
@pytest.mark.parametrize("bias", [False, True])
def test_any_mix_multiplies_as_its_floats_do(mix: Mix, bias: bool) -> None:
    weight, whole, offset = made(mix, bias=bias)
    for num_rows in (1, 3, 20):
        x = torch.randn(num_rows, COLUMNS)
        exact = x.double() @ whole.double().T
        bound = (COLUMNS + 2) * 2.0**-24 * (x.double().abs() @ whole.double().abs().T + 1)
        if offset is not None:
            exact += offset.double()
            bound += 2.0**-23 * offset.double().abs()
        for scratch in (None, Workspace()):
            assert bool(((weight.apply(x, scratch).double() - exact).abs() <= bound).all())
    begin = 0
    for name, _, rows in mix:
        assert torch.equal(weight.dequantize(name), whole[begin : begin + rows])
        begin += rows


@pytest.mark.parametrize("mix", MIXES, ids=["same", "two", "odd", "floats"])
def test_any_mix_meets_activations_of_8_bits(mix: Mix) -> None:
    """Each part has the bits of the integer model of its own type; floats meet floats."""
    weight, whole, offset = made(mix, bias=True, method=Int8Activations())
    assert offset is not None
    x = torch.randn(7, COLUMNS)
    out, begin = weight.apply(x), 0
    for index, (name, kind, rows) in enumerate(mix):
        here = slice(begin, begin + rows)
        if kind == "F32":
            expected = NativeLinear.apply(x, NativeLinear.pack(whole[here]), offset[here])
        else:
            model = quantised(kind, blocks(kind, rows, COLUMNS, seed=index), rows, COLUMNS)
            expected = torch.from_numpy(product(x.numpy(), model, offset[here].numpy()))
        assert torch.equal(out[:, here], expected)
        assert torch.equal(weight.dequantize(name), whole[here])
        begin += rows


def test_memory_is_that_of_the_blocks() -> None:
    weight, whole, _ = made(MIXES[0])
    assert len(weight.segments) == 1
    assert weight.num_bytes == whole.numel() * 5 // 8  # Q4_1: 4 bits, and two halves for 32 weights
    assert len(made(MIXES[1])[0].segments) == 2


def test_a_table_gathers_rows() -> None:
    weight, whole, _ = made([("table", "Q8_0", 50)])
    ids = torch.tensor([49, 0, 7])
    assert torch.equal(weight.gather(ids), whole[ids])


def test_loading_again_replaces() -> None:
    weight, _, _ = made([("w", "Q8_0", 16)])
    raw = blocks("Q4_0", 16, COLUMNS, seed=9)
    weight.load("w", StoredBlocks(raw, NUMBERS["Q4_0"], (16, COLUMNS)))
    assert torch.equal(weight.dequantize("w"), ReferenceBlocks.pack(raw, NUMBERS["Q4_0"], 16, COLUMNS))
    assert raw.dtype == np.uint8
