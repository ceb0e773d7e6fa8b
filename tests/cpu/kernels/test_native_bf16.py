"""Products of weights and activations of bfloat16: the bits of either instruction's model, and a row's bits its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cpu.kernels.bf16_model import MODELS, bfloat16
from tests.cpu.kernels.test_native_blocks import NUMBERS, TYPES, blocks

from paceline.hub.ggml_types import GGML_TYPES
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.dispatch import choose
from paceline.runtime.kernels.reference.blocks import ReferenceBlocks
from paceline.runtime.kv_cache import Workspace

if native.why_not():
    LACKING = native.why_not()
else:
    from paceline.runtime.kernels.cpu.blocks import BlockPanels, NativeBf16Blocks, NativeBlocks
    from paceline.runtime.kernels.cpu.linear import NativeBf16Linear

    LACKING = "" if native.multiplies_bf16() else "this CPU has no products of bfloat16"
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)
LEVELS = [] if LACKING else [level for level in MODELS if level in native.isa_levels()]
FLOATS = "floats"  # a weight that comes in no blocks


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    native.set_isa(request.param)
    yield request.param
    native.set_isa(native.isa_levels()[-1])


def made(kind: str, outputs: int, inputs: int, seed: int = 0) -> tuple[BlockPanels, torch.Tensor]:
    """A packed weight, and what it stands for before bfloat16 [outputs, inputs]."""
    if kind == FLOATS:
        weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
        return NativeBf16Blocks.pack_floats(weight), weight
    raw = blocks(kind, outputs, inputs, seed=seed)
    packed = NativeBf16Blocks.pack(raw, NUMBERS[kind], outputs, inputs)
    return packed, ReferenceBlocks.pack(raw, NUMBERS[kind], outputs, inputs)


def inputs_of(kind: str) -> list[int]:
    """The fewest inputs a weight can have, and more than the units that are under way at once."""
    return [1, 100, 416] if kind == FLOATS else [GGML_TYPES[NUMBERS[kind]].block_size, 768]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_packing_keeps_every_number(name: str, rows: int) -> None:
    packed, weight = made(name, rows, 512, seed=rows)
    raw = blocks(name, rows, 512, seed=rows)
    assert packed.kind != NativeBlocks.pack(raw, NUMBERS[name], rows, 512).kind
    assert torch.equal(NativeBf16Blocks.unpack(packed), weight)
    ids = torch.tensor([rows - 1, 0, rows - 1])
    assert torch.equal(NativeBf16Blocks.gather(packed, ids), weight[ids])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_floats_are_rounded_once(dtype: torch.dtype) -> None:
    for outputs, inputs in [(1, 1), (33, 31), (16, 65)]:
        weight = (torch.randn(outputs, inputs) * 10.0 ** torch.randint(-5, 4, (outputs, inputs))).to(dtype)
        weight[0, 0] = -0.0
        packed = NativeBf16Blocks.pack_floats(weight)
        assert torch.equal(NativeBf16Blocks.unpack(packed), weight.bfloat16().float())
        assert packed.nbytes == NativeBf16Blocks.float_bytes(outputs, inputs)
    special = torch.tensor([[torch.inf, -torch.inf, 3.4e38, 1e-40]])
    assert torch.equal(NativeBf16Blocks.unpack(NativeBf16Blocks.pack_floats(special)), special.bfloat16().float())
    assert NativeBf16Blocks.unpack(NativeBf16Blocks.pack_floats(special * torch.nan)).isnan().all()


@pytest.mark.parametrize("kind", [*TYPES, FLOATS])
def test_products_have_the_bits_of_the_instructions(kind: str, level: str) -> None:
    draw = torch.Generator().manual_seed(0)
    for outputs in (7, 33):
        for inputs in inputs_of(kind):
            packed, weight = made(kind, outputs, inputs, seed=outputs)
            bias = torch.randn(outputs, generator=draw)
            x = torch.randn(101, inputs, generator=draw) * 10.0 ** torch.randint(-3, 4, (101, 1))
            expected = MODELS[level](x.numpy(), weight.numpy())
            for count in (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65, 97, 101):
                ours = NativeBf16Blocks.apply(x[:count], packed, None).numpy()
                assert np.array_equal(ours, expected[:count]), (outputs, inputs, count)
            ours = NativeBf16Blocks.apply(x[:19], packed, bias).numpy()
            assert np.array_equal(ours, expected[:19] + bias.numpy())


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", FLOATS])
def test_a_row_has_the_same_bits_whatever_its_mates_and_threads(kind: str, threads: int) -> None:
    draw = torch.Generator().manual_seed(1)
    for outputs, inputs in [(200, 768), (48, 1536)]:
        packed, _ = made(kind, outputs, inputs)
        x = torch.randn(90, inputs, generator=draw)
        torch.set_num_threads(1)
        alone = torch.cat([NativeBf16Blocks.apply(row[None], packed, None) for row in x[19:]])
        torch.set_num_threads(threads)
        for count in (1, 2, 7, 16, 33, 71):
            assert torch.equal(NativeBf16Blocks.apply(x[19 : 19 + count], packed, None), alone[:count]), count


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kind", ["Q4_1", FLOATS])
def test_rows_of_more_than_one_chunk_have_the_bits_of_few(kind: str, threads: int) -> None:
    """So many inputs that the rows of a tile's height fill a good part of a second-level cache; a last panel alone."""
    packed, _ = made(kind, 33, 6400)
    x = torch.randn(171, 6400, generator=torch.Generator().manual_seed(2))
    torch.set_num_threads(threads)
    few = torch.cat([NativeBf16Blocks.apply(x[at : at + 19], packed, None) for at in range(0, 171, 19)])
    assert torch.equal(NativeBf16Blocks.apply(x, packed, None), few)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_every_finite_scale_is_rounded_as_its_products_are(kind: str) -> None:
    """Of both signs, zeros and subnormal ones, each with 32 codes: the identity shows what every weight became."""
    halves = np.arange(65536, dtype=np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))]
    raw = blocks(kind, len(halves), 32).reshape(len(halves), -1)
    raw[:, :2] = np.random.default_rng(0).permutation(halves).view(np.uint8).reshape(-1, 2)
    packed = NativeBf16Blocks.pack(raw.reshape(-1), NUMBERS[kind], len(halves), 32)
    weight = ReferenceBlocks.pack(raw.reshape(-1), NUMBERS[kind], len(halves), 32)
    assert torch.equal(NativeBf16Blocks.apply(torch.eye(32), packed, None), weight.bfloat16().float().T)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_a_scale_that_is_not_finite_stays_so_in_its_output_alone(kind: str, scale: float) -> None:
    raw = blocks(kind, 35, 64, seed=7).reshape(35, 2, -1)
    clean = NativeBf16Blocks.pack(raw.reshape(-1).copy(), NUMBERS[kind], 35, 64)
    raw[20, 1, :2] = np.array([scale], np.float16).view(np.uint8)
    packed = NativeBf16Blocks.pack(raw.reshape(-1), NUMBERS[kind], 35, 64)
    x = torch.randn(70, 64)
    out, expected = NativeBf16Blocks.apply(x, packed, None), NativeBf16Blocks.apply(x, clean, None)
    others = [n for n in range(35) if n != 20]
    assert torch.equal(out[:, others], expected[:, others])
    assert not out[:, 20].isfinite().any()


@given(rows=st.integers(1, 140), cut=st.integers(0, 139), outputs=st.integers(1, 49), units=st.integers(1, 9))
def test_chunks_of_rows_change_nothing(rows: int, cut: int, outputs: int, units: int) -> None:
    packed, _ = made("Q5_0", outputs, 32 * units)
    x = torch.randn(rows, 32 * units, generator=torch.Generator().manual_seed(rows))
    pieces = [NativeBf16Blocks.apply(part, packed, None) for part in (x[:cut], x[cut:])]
    assert torch.equal(torch.cat(pieces), NativeBf16Blocks.apply(x, packed, None))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kind", [*TYPES, FLOATS])
def test_the_error_is_that_of_rounding_both_sides(kind: str) -> None:
    """Half a unit in the last of 8 places on each side, and float sums of K products by their own rounding."""
    packed, weight = made(kind, 40, 768, seed=3)
    x = torch.randn(20, 768)
    exact = x.double() @ weight.double().T
    size = x.double().abs() @ weight.double().abs().T
    bound = (2 * 2.0**-8 + 2.0**-16 + 768 * 2.0**-23) * size
    error = (NativeBf16Blocks.apply(x, packed, None).double() - exact).abs()
    assert bool((error <= bound + 1e-30).all())
    assert bool((error > 0).any())


def test_the_smallest_numbers_count_as_zero(level: str) -> None:
    packed, weight = made(FLOATS, 17, 64)
    for value in (0.0, -0.0, 1e-40, -1e-45):
        assert not NativeBf16Blocks.apply(torch.full((2, 64), value), packed, None).any()
    least = torch.full((2, 64), 2.0**-90)
    expected = torch.from_numpy(MODELS[level](least.numpy() * 2.0**90, weight.numpy())) * 2.0**-90
    assert torch.equal(NativeBf16Blocks.apply(least, packed, None), expected)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q6_K", FLOATS])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_so_in_its_row_alone(kind: str, bad: float) -> None:
    packed, weight = made(kind, 33, 256, seed=5)
    x = torch.randn(7, 256)
    clean = NativeBf16Blocks.apply(x, packed, None)
    x[3, 77] = bad
    out = NativeBf16Blocks.apply(x, packed, None)
    others = [0, 1, 2, 4, 5, 6]
    assert torch.equal(out[others], clean[others])
    assert not out[3][weight[:, 77].bfloat16() != 0].isfinite().any()


@pytest.mark.usefixtures("level")
def test_rows_may_lie_apart_on_both_sides_and_results_in_scratch_memory() -> None:
    packed, _ = made("Q4_0", 40, 32)
    wide = torch.randn(9, 70)
    expected = NativeBf16Blocks.apply(wide[:, :32].contiguous(), packed, None)
    out = torch.zeros(9, 50)
    NativeBf16Blocks.apply_into(wide[:, :32], packed, None, out[:, 4:44])
    assert torch.equal(out[:, 4:44], expected)
    assert not out[:, :4].any()
    assert not out[:, 44:].any()
    assert torch.equal(NativeBf16Blocks.apply(wide[:, :32], packed, None, Workspace()), expected)


def test_neighbours_of_one_kind_join() -> None:
    pieces = [made("Q5_1", 32, 64, 1)[0], made("Q5_1", 24, 64, 2)[0], made(FLOATS, 16, 64)[0]]
    both = NativeBf16Blocks.joined(pieces[0], pieces[1])
    assert both is not None
    assert torch.equal(NativeBf16Blocks.unpack(both), torch.cat([NativeBf16Blocks.unpack(p) for p in pieces[:2]]))
    assert NativeBf16Blocks.joined(pieces[0], pieces[2]) is None


def test_blocks_take_no_more_than_their_codes_and_scales() -> None:
    """Bits of a weight: codes of 4, 5 or 8 bits; a scale for 32 or 16, an offset perhaps, of 16 bits or of 32."""
    bits = {"Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "Q4_K": 6, "Q5_K": 7, "Q6_K": 10}
    for name in TYPES:
        assert NativeBf16Blocks.packed_bytes(NUMBERS[name], 64, 512) == 64 * 512 * bits[name] / 8, name
        assert NativeBf16Blocks.takes(NUMBERS[name])


def test_rounding_is_to_nearest_with_ties_to_even() -> None:
    edges = np.array([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0xBF808000, 0x7F7F8000], np.uint32).view(
        np.float32
    )
    identity = NativeBf16Blocks.pack_floats(torch.eye(6))
    with np.errstate(over="ignore"):
        expected = bfloat16(edges)
    rows = torch.diag(torch.from_numpy(edges))
    ours = NativeBf16Blocks.apply(rows[:5, :5].contiguous(), NativeBf16Blocks.pack_floats(torch.eye(5)), None)
    assert np.array_equal(ours.diagonal().numpy(), expected[:5])
    assert torch.isinf(NativeBf16Blocks.apply(torch.from_numpy(edges[None] * 1.0), identity, None)[0, 5])


@pytest.mark.parametrize("shape", [(1, 1), (15, 3), (16, 32), (33, 80), (515, 40)])
def test_a_weight_of_bfloat16_is_kept_as_it_is(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    packed = NativeBf16Linear.pack(weight.t().contiguous().t())  # from any strides
    assert packed.nbytes == NativeBf16Blocks.float_bytes(*shape)
    assert torch.equal(NativeBf16Linear.unpack(packed), weight)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] - 1])
    assert torch.equal(NativeBf16Linear.gather(packed, ids), weight[ids])
    with pytest.raises(IndexError):
        NativeBf16Linear.gather(packed, torch.tensor([shape[0]]))
    x = torch.randn(5, shape[1], generator=torch.Generator().manual_seed(2))
    expected = NativeBf16Blocks.apply(x, NativeBf16Blocks.pack_floats(weight), None)
    assert torch.equal(NativeBf16Linear.apply(x, packed, None), expected)
    assert torch.equal(
        NativeBf16Linear.apply(x.bfloat16(), packed, None),
        NativeBf16Linear.apply(x.bfloat16().float(), packed, None).bfloat16(),
    )


@pytest.mark.parametrize("op", ["linear", "gguf_linear"])
def test_it_serves_bfloat16_and_below_its_instructions_something_else_does(op: str) -> None:
    own = NativeBf16Linear if op == "linear" else NativeBf16Blocks
    served = {}
    try:
        for level in native.isa_levels():
            native.set_isa(level)
            served[level] = choose(op, "cpu", torch.bfloat16, "fast")
            assert (served[level].load() is own) == native.multiplies_bf16(), level
    finally:
        native.set_isa(native.isa_levels()[-1])
    assert served["avx2"].load() is not own
    assert served.get("amx", served["vnni512"]).name == ("native-amx" if "amx" in served else "native-avx512bf16")
