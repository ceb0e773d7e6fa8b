"""K and V of 8 bits: what rounding keeps, that native code writes the same bytes, and what attention makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu.kernels.cases import Case, check_rows_alone, make_case, naive
from tests.cpu.kernels.test_attention import STEPS, run
from tests.pure.config.specs import SMOLLM2

from paceline.contracts.kv import KVLayout, kv_format, plan_kv_groups
from paceline.errors import UnsupportedError
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.reference.attention import attention as reference
from paceline.runtime.kernels.reference.kv_int8 import LEAST_MAGNITUDE, from_records, to_records
from paceline.runtime.kernels.reference.kv_write import write_kv as reference_write
from paceline.runtime.kv_cache import KVCache

needs_native = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
KERNELS = {"reference": reference}
if not native.why_not():
    from paceline.runtime.kernels.cpu.attention import attention as native_attention
    from paceline.runtime.kernels.cpu.attention import plan_tiles
    from paceline.runtime.kernels.cpu.kv_write import write_int8_kv

    KERNELS["native"] = native_attention


def int8_case(rows: list[tuple[int, int]], **options: Any) -> Case:
    return make_case(rows, kv_dtype=torch.int8, **options)


def numbers(rows: int, dim: int, seed: int) -> torch.Tensor:
    """[rows, dim] of all sizes that a float has, with rows of zeros, of what is too small, and of what is no number."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, generator=draw) * 10.0 ** torch.randint(-37, 38, (rows, 1), generator=draw)
    x[::7] = 0.0
    x[1::11, 0] = float("nan")
    x[2::13, -1] = float("-inf")
    return x


# --- rounding


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([4, 8, 64, 100]))
def test_a_number_is_off_by_at_most_half_a_step_of_its_own_head(seed: int, dim: int) -> None:
    x = numbers(32, dim, seed)
    records = to_records(x)
    assert records.shape == (32, dim + 4)
    back, most = from_records(records), x.abs().amax(-1, keepdim=True)
    good = most.isfinite()[:, 0]
    assert back[~good].isnan().all(), "a head that is not finite is none"
    # half a step, and three roundings of floats: of the factor, of the product, of the scale
    bound = most.double() / 127 * (0.5 + 127 * 3 * 2.0**-24)
    bound = torch.where(most < LEAST_MAGNITUDE, most.double(), bound)
    assert ((back.double() - x.double()).abs() <= bound)[good].all()
    largest = records[:, :dim].abs().amax(-1)
    kept = good & (most[:, 0] >= LEAST_MAGNITUDE)
    assert (largest[kept] == 127).all()
    assert not records[good & ~kept].any()


def test_ties_go_to_the_even_code_and_the_scale_is_the_largest_over_127() -> None:
    records = to_records(torch.tensor([[127.0, 0.5, 1.5, -2.5]]))
    assert records[0, :4].tolist() == [127, 0, 2, -2]
    assert from_records(records).tolist() == [[127.0, 0.0, 2.0, -2.0]]


# --- writing


@needs_native
@pytest.mark.parametrize("dim", [4, 8, 24, 64, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_native_code_writes_the_bytes_of_the_reference(dim: int, dtype: torch.dtype) -> None:
    case = int8_case([(0, 1)], dim=dim, heads=2, kv_heads=2, block_size=16, seed=1)
    heads, slots = 4, case.cache.num_blocks * case.cache.block_size
    for num_tokens, threads in ((0, 1), (1, 2), (slots, 3)):
        kv = numbers(num_tokens * heads, dim, num_tokens).view(num_tokens, heads, dim)
        both = torch.cat((torch.randn(num_tokens, 2, dim), kv), 1).to(dtype)  # q lies beside
        order = torch.randperm(slots, generator=torch.Generator().manual_seed(2))[:num_tokens]
        written = []
        for write in (write_int8_kv, reference_write):
            case.cache.kv.fill_(7)
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                write(both[:, 2:], case.cache, order)
            finally:
                torch.set_num_threads(before)
            written.append(case.cache.kv.clone())
        assert torch.equal(*written)


@needs_native
def test_many_tokens_are_shared_between_threads_and_have_the_same_bytes() -> None:
    held = kv_format("int8", SMOLLM2)
    groups = plan_kv_groups(SMOLLM2, 16, held.element_bytes, held.scale_bytes)
    layout = KVLayout(groups=groups, num_blocks=40, dtype="int8")
    mine, theirs = (KVCache(layout, SMOLLM2, torch.int8).layer_cache(1) for _ in range(2))
    kv = numbers(600 * 6, 64, 3).view(600, 6, 64)
    slots = torch.randperm(640, generator=torch.Generator().manual_seed(0))[:600] + 16
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        write_int8_kv(kv, mine, slots)
    finally:
        torch.set_num_threads(before)
    reference_write(kv, theirs, slots)
    assert torch.equal(mine.kv, theirs.kv)
    assert not mine.block(0).any(), "the null block stays zero"


# --- attention


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("extra", [{}, {"window": 40, "softcap": 3.0}], ids=str)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_matches_the_definition_over_what_is_held(
    kernel: Callable[..., torch.Tensor], step: Any, extra: dict[str, Any]
) -> None:
    case = int8_case(step, **extra)
    torch.testing.assert_close(run(kernel, case), naive(case).float(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize(
    ("heads", "dim", "block_size"),
    [((1, 1), 8, 1), ((4, 4), 24, 4), ((9, 3), 64, 32), ((16, 1), 128, 16), ((12, 4), 256, 64), ((6, 2), 12, 16)],
    ids=str,
)
def test_head_and_block_sizes(
    kernel: Callable[..., torch.Tensor], heads: tuple[int, int], dim: int, block_size: int
) -> None:
    case = int8_case(STEPS["mixed"], heads=heads[0], kv_heads=heads[1], dim=dim, block_size=block_size, seed=3)
    torch.testing.assert_close(run(kernel, case), naive(case).float(), rtol=0, atol=5e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_queries_of_half_precision(kernel: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    case = int8_case(STEPS["mixed"], dtype=dtype)
    out = run(kernel, case)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), naive(case).float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("extra", [{}, {"window": 24}], ids=str)
def test_bits_depend_on_the_row_alone(kernel: Callable[..., torch.Tensor], extra: dict[str, Any]) -> None:
    """Each row alone, in other chunks and other blocks, equals the same row in a mixed batch to the last bit."""
    case = int8_case([*STEPS["mixed"], (250, 20), (600, 1)], seed=5, **extra)
    check_rows_alone(kernel, case, run(kernel, case), {**extra, "kv_dtype": torch.int8}, parts=2)


@needs_native
def test_rows_that_share_a_prefix_read_it_once_and_give_the_same_bits() -> None:
    rows = [(80, 1), (97, 1), (130, 1), (81, 1), (20, 1), (90, 30)]
    shared, apart = (int8_case(rows, shared=80, seed=2), int8_case(rows, seed=2))
    plan = plan_tiles(shared.metadata, shared.cache, shared.params)
    assert (4, 80) in {tuple(tile) for tile in plan.held[2][:, 1:].tolist()}
    for row, history in enumerate(shared.history):  # the same content in blocks of each row's own
        table, places = apart.metadata.groups[0].block_tables[row].long(), torch.arange(len(history))
        reference_write(history, apart.cache, table[places // 16] * 16 + places % 16)
    apart.q.copy_(shared.q)
    assert torch.equal(run(native_attention, shared).clone(), run(native_attention, apart))


@needs_native
def test_threads_change_no_bit() -> None:
    case = int8_case([(300, 1), (0, 200), (40, 1), (500, 64)], heads=9, kv_heads=3, dim=64)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(run(native_attention, case).clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_what_rounding_costs_is_within_the_bound(kernel: Callable[..., torch.Tensor], softcap: float | None) -> None:
    """A score is off by e = scale |q|_1 max|k| / 254 at most (a soft-cap only shrinks that), a weight by a factor
    within exp(-2e)..exp(2e), so the result by max|v| (1 / 254 + exp(2e) - 1)."""
    rows = [(40, 1), (0, 30), (300, 5)]
    rounded, plain = int8_case(rows, softcap=softcap, seed=4), make_case(rows, softcap=softcap, seed=4)
    assert torch.equal(rounded.q, plain.q)
    error = (run(kernel, rounded).double() - naive(plain)).abs().amax(-1)
    at = 0
    for history, count in zip(plain.history, plain.metadata.query_lens.tolist(), strict=True):
        key, value = (part.abs().max().item() for part in history.split(plain.params.num_kv_heads, 1))
        for token in range(at, at + count):
            e = plain.params.scale * plain.q[token].double().abs().sum(-1).max().item() * key / 254
            assert 0 < error[token] <= value * (1 / 254 + math.expm1(2 * e)) + 1e-5
        at += count


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("part", [0, 1], ids=["key", "value"])
def test_a_number_that_is_none_shows_in_the_rows_that_see_it_and_no_others(
    kernel: Callable[..., torch.Tensor], part: int
) -> None:
    case = int8_case([(40, 1), (33, 1)], heads=2, kv_heads=1)
    block = int(case.metadata.groups[0].block_tables[0, 1])
    case.cache.block(block)[part, 0, 3] = to_records(torch.full((16,), float("nan")))
    out = run(kernel, case)
    assert out[0].isnan().any()
    assert out[1].isfinite().all()


def test_a_head_size_without_room_for_a_scale_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="head_dim 6"):
        int8_case([(3, 1)], dim=6)
