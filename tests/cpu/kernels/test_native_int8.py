"""Products of quantised weights and activations of 8 bits: the bits of the integer model, and a row's bits its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.cpu.kernels.int8_model import activations, product, quantised
from tests.cpu.kernels.test_native_blocks import NUMBERS, TYPES, blocks

from paceline.hub.ggml_types import GGML_TYPES
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.reference.blocks import ReferenceBlocks
from paceline.runtime.kv_cache import Workspace
from paceline.runtime.peak_memory import peak_memory

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
if not native.why_not():
    from paceline.runtime.kernels.cpu.blocks import BlockPanels, NativeBlocks, NativeInt8Blocks


def packed(name: str, raw: np.ndarray, outputs: int, inputs: int) -> BlockPanels:
    return NativeInt8Blocks.pack(raw, NUMBERS[name], outputs, inputs)


def one_group(name: str) -> int:
    """The fewest inputs a weight can have."""
    return GGML_TYPES[NUMBERS[name]].block_size


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_packing_keeps_every_number(name: str, rows: int) -> None:
    raw = blocks(name, rows, 512, seed=rows)
    weight = ReferenceBlocks.pack(raw, NUMBERS[name], rows, 512)
    ours = packed(name, raw, rows, 512)
    assert ours.kind != NativeBlocks.pack(raw, NUMBERS[name], rows, 512).kind
    assert torch.equal(NativeInt8Blocks.unpack(ours), weight)
    ids = torch.tensor([rows - 1, 0, rows - 1])
    assert torch.equal(NativeInt8Blocks.gather(ours, ids), weight[ids])


@pytest.mark.parametrize("name", TYPES)
def test_products_have_the_bits_of_the_integer_model(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    for outputs, inputs in [(33, one_group(name)), (80, 768), (7, 256)]:
        raw = blocks(name, outputs, inputs, seed=outputs)
        ours, model = packed(name, raw, outputs, inputs), quantised(name, raw, outputs, inputs)
        bias = torch.randn(outputs, generator=draw)
        for num_rows in (0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 50):
            x = torch.randn(num_rows, inputs, generator=draw) * 10.0 ** torch.randint(-6, 4, (num_rows, 1))
            for offset in (None, bias):
                expected = product(x.numpy(), model, None if offset is None else offset.numpy())
                assert np.array_equal(NativeInt8Blocks.apply(x, ours, offset).numpy(), expected), (inputs, num_rows)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
@pytest.mark.usefixtures("level")
def test_the_largest_codes_of_both_sides_do_not_saturate(name: str, byte: int) -> None:
    """Sums of 16 bits take their largest values of either sign: weights all alike, activations all 127 or -127.

    Four rows and forty: levels have paths of their own for many."""
    kind = GGML_TYPES[NUMBERS[name]]
    outputs, inputs = 17, 2 * kind.block_size
    raw = blocks(name, outputs, inputs, seed=1).reshape(-1, kind.block_bytes)
    codes = {"Q4_0": 2, "Q4_1": 4, "Q5_0": 2, "Q5_1": 4, "Q8_0": 2, "Q4_K": 16, "Q5_K": 16, "Q6_K": 0}[name]
    raw[:, codes : 192 if name == "Q6_K" else None] = byte
    raw = raw.reshape(-1)
    model = quantised(name, raw, outputs, inputs)
    x = np.ones((4, inputs), np.float32)
    x[1], x[2, ::2], x[3, 1::4] = -1, -1, -1
    assert set(np.unique(activations(x, model.group)[0])) == {-127, 127}
    expected = product(x, model)
    for times in (1, 10):
        many = torch.from_numpy(np.tile(x, (times, 1)))
        ours = NativeInt8Blocks.apply(many, packed(name, raw, outputs, inputs), None)
        assert np.array_equal(ours.numpy(), np.tile(expected, (times, 1)))


@pytest.mark.parametrize("name", TYPES)
def test_a_row_has_the_same_bits_whatever_its_mates_and_threads(name: str, threads: int) -> None:
    draw = torch.Generator().manual_seed(1)
    for outputs, inputs in [(200, 768), (48, 1536)]:
        ours = packed(name, blocks(name, outputs, inputs), outputs, inputs)
        x = torch.randn(150, inputs, generator=draw)
        torch.set_num_threads(1)
        alone = torch.cat([NativeInt8Blocks.apply(row[None], ours, None) for row in x[29:]])
        torch.set_num_threads(threads)
        for count in (*range(1, 14), 64, 121):
            assert torch.equal(NativeInt8Blocks.apply(x[29 : 29 + count], ours, None), alone[:count]), count


@pytest.mark.parametrize("name", TYPES)
def test_the_error_is_that_of_rounding_activations(name: str) -> None:
    """An activation is off by half a step and a little for the factor's rounding; float sums by their own rounding."""
    raw = blocks(name, 40, 768, seed=3)
    weight = ReferenceBlocks.pack(raw, NUMBERS[name], 40, 768).double()
    group = quantised(name, raw, 40, 768).group
    x = torch.randn(20, 768)
    step = x.double().reshape(20, -1, group).abs().amax(2) / 127
    size = weight.abs().reshape(40, -1, group).sum(2)
    bound = 0.501 * step @ size.T
    # offsets are summed apart from codes, so what is rounded there is larger than the weights
    parts = quantised(name, raw, 40, 768)
    codes = np.abs(parts.codes.reshape(40, -1, group)).sum(2) * np.abs(parts.scale)
    if parts.offset is not None:
        codes = codes + np.abs(parts.offset) * group
    bound += 768 * 2.0**-23 * (127 * step) @ torch.from_numpy(codes).double().T
    error = (NativeInt8Blocks.apply(x, packed(name, raw, 40, 768), None).double() - x.double() @ weight.T).abs()
    assert bool((error <= bound + 1e-30).all())
    assert bool((error > 0).any())


def test_zeros_and_the_smallest_numbers_count_as_nothing() -> None:
    raw = blocks("Q5_1", 20, 64)
    ours = packed("Q5_1", raw, 20, 64)
    for value in (0.0, -0.0, 1e-45, 9e-37):
        assert not NativeInt8Blocks.apply(torch.full((2, 64), value), ours, None).any()
    x = np.zeros((1, 64), np.float32)
    x[0, :32], x[0, 40] = 2e-36, 1e30  # as small and as large as they may be
    assert np.array_equal(
        NativeInt8Blocks.apply(torch.from_numpy(x), ours, None).numpy(), product(x, quantised("Q5_1", raw, 20, 64))
    )


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q6_K"])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("count", [7, 20])
@pytest.mark.usefixtures("level")
def test_what_is_not_finite_stays_so_in_its_row_alone(name: str, bad: float, count: int) -> None:
    ours = packed(name, blocks(name, 33, 256, seed=5) | 1, 33, 256)
    x = torch.randn(count, 256)
    clean = NativeInt8Blocks.apply(x, ours, None)
    x[3, 77] = bad
    out = NativeInt8Blocks.apply(x, ours, None)
    others = [row for row in range(count) if row != 3]
    assert torch.equal(out[others], clean[others])
    assert not out[3].isfinite().any()


def test_rows_may_lie_apart_on_both_sides_and_results_in_scratch_memory() -> None:
    ours = packed("Q4_0", blocks("Q4_0", 40, 32), 40, 32)
    wide = torch.randn(9, 70)
    expected = NativeInt8Blocks.apply(wide[:, :32].contiguous(), ours, None)
    out = torch.zeros(9, 50)
    NativeInt8Blocks.apply_into(wide[:, :32], ours, None, out[:, 4:44])
    assert torch.equal(out[:, 4:44], expected)
    assert not out[:, :4].any()
    assert not out[:, 44:].any()
    assert torch.equal(NativeInt8Blocks.apply(wide[:, :32], ours, None, Workspace()), expected)


def test_rounded_rows_are_let_go_with_the_product() -> None:
    """Ten MiB for these rows, in memory that nobody keeps."""
    ours, x = packed("Q8_0", blocks("Q8_0", 16, 2048), 16, 2048), torch.ones(4096, 2048)
    out = torch.zeros(4096, 16)
    with peak_memory(torch.device("cpu")) as during:
        NativeInt8Blocks.apply_into(x, ours, None, out)
    with peak_memory(torch.device("cpu")) as again:
        NativeInt8Blocks.apply_into(x, ours, None, out)
    if during.num_bytes is None or again.num_bytes is None:
        pytest.skip("this system does not say how much memory a product took")
    rounded = native.library().paceline_cpu_linear_scratch(ours.kind, 4096, 2048)
    whole = 4096 * 2048 * 5 // 4
    assert whole <= rounded < 1.01 * whole  # blocks of rows are filled up
    for taken in (during.num_bytes, again.num_bytes):  # memory that was kept would not be taken again
        assert 0.5 * rounded < taken < 1.2 * rounded  # what earlier tests gave back may hide some


def test_memory_that_is_not_there_is_an_error_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, x, out = packed("Q8_0", blocks("Q8_0", 16, 64), 16, 64), torch.zeros(2, 64), torch.zeros(2, 16)
    monkeypatch.setattr(native.library(), "paceline_cpu_linear_scratch", lambda *_: 1 << 60)
    with pytest.raises(RuntimeError, match="memory"):
        NativeInt8Blocks.apply_into(x, ours, None, out)


def test_weights_for_the_two_products_do_not_join() -> None:
    raw = blocks("Q8_0", 32, 64)
    ours, widened = packed("Q8_0", raw, 32, 64), NativeBlocks.pack(raw, NUMBERS["Q8_0"], 32, 64)
    assert NativeBlocks.joined(ours, widened) is None
    both = NativeBlocks.joined(ours, ours)
    assert both is not None
    x = torch.randn(3, 64)
    assert torch.equal(NativeInt8Blocks.apply(x, both, None)[:, 32:], NativeInt8Blocks.apply(x, ours, None))


def test_it_takes_what_the_widened_product_takes_in_no_more_memory() -> None:
    for number, kind in GGML_TYPES.items():
        assert NativeInt8Blocks.takes(number) == NativeBlocks.takes(number), kind.name
    for name in TYPES:
        raw = blocks(name, 48, 256)
        assert packed(name, raw, 48, 256).nbytes == NativeBlocks.pack(raw, NUMBERS[name], 48, 256).nbytes
