"""Attention in tiles, over a cache of bfloat16: as near as its roundings allow, and each row's bits its own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cpu.kernels.cases import Case, ask_alone, check_rows_alone, make_case

from paceline.runtime.kernels.cpu import native

HAS_TILES = not native.why_not() and "amx" in native.isa_levels()
pytestmark = pytest.mark.skipif(not HAS_TILES, reason="no AMX here")

if not native.why_not():
    from paceline.runtime.kernels.cpu.attention import AMX_KEYS, attention, plan_tiles

MIXED = [(40, 1), (0, 50), (7, 1), (64, 30), (100, 1), (31, 2)]
EDGES = [(63, 1), (64, 1), (65, 1), (127, 1), (0, 64), (0, 65), (3, 61), (0, 1)]
LONG = [(250, 20), (0, 300), (600, 1), (500, 90)]
EXTRAS: list[dict[str, Any]] = [{}, {"window": 24}, {"softcap": 2.0}, {"window": 150, "softcap": 30.0}]


def make(rows: list[tuple[int, int]], **sizes: Any) -> Case:
    """Queries are numbers of bfloat16, and `history` is what the cache holds."""
    case = make_case(rows, kv_dtype=torch.bfloat16, **{"dim": 64, "heads": 9, "kv_heads": 3} | sizes)
    case.q = case.q.bfloat16().float()
    case.history = [own.bfloat16().float() for own in case.history]
    return case


def run(case: Case) -> torch.Tensor:
    with torch.inference_mode():
        return attention(case.q, case.kv, case.cache, case.fresh(), case.params).clone()


def check_error(case: Case) -> None:
    """Against the definition in float64.

    A weight is off by a factor of 1 + e at most: e is half a unit of bfloat16, 2^-8, the polynomial's 2^-13, and what
    scores in float32 are off. Weights w (1 + e), divided by their sum, move a mean of values by at most e / (1 - e)
    times the mean of |value - mean|. Sums in float32 add little."""
    out, params, at = run(case).double(), case.params, 0
    per_kv = params.num_heads // params.num_kv_heads
    for row, (context, count) in enumerate(zip(case.metadata.context_lens, case.metadata.query_lens, strict=True)):
        kv = case.history[row].double().repeat_interleave(per_kv, 1).transpose(0, 1)  # [2 * heads, length, head_dim]
        k, v = kv[: params.num_heads], kv[params.num_heads :]
        q = case.q[at : at + count].double().transpose(0, 1)  # [heads, count, head_dim]
        scores = q @ k.transpose(1, 2) * params.scale
        sizes = q.abs() @ k.abs().transpose(1, 2) * params.scale
        off = (params.head_dim + 4) * 2.0**-23 * sizes.amax(-1, keepdim=True)
        if params.softcap is not None:
            scores = params.softcap * torch.tanh(scores / params.softcap)
            off = off + 2e-6 * params.softcap
        position = context + torch.arange(count)[:, None]
        key = torch.arange(k.shape[1])[None]
        seen = (key <= position) & (key > position - (params.window or 1 << 30))
        p = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
        mean = p @ v  # [heads, count, head_dim]
        spread = torch.stack([(p[:, i, :, None] * (v - mean[:, i, None]).abs()).sum(1) for i in range(count)], 1)
        e = 2.0**-8 + 2.0**-13 + off
        bound = e / (1 - e) * spread + 2.0**-17 * (p @ v.abs())
        got = out[at : at + count].view(count, params.num_heads, -1).transpose(0, 1)
        assert ((got - mean).abs() <= bound).all(), (row, ((got - mean).abs() / bound).max())
        at += count


@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("rows", [MIXED, EDGES, LONG], ids=["mixed", "edges", "long"])
def test_error_is_within_its_bound(rows: list[tuple[int, int]], extra: dict[str, Any]) -> None:
    check_error(make(rows, **extra))


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (12, 4), (48, 1)], ids=str)
def test_head_sizes(dim: int, heads: tuple[int, int]) -> None:
    check_error(make([(40, 1), (0, 50), (7, 1), (64, 30)], heads=heads[0], kv_heads=heads[1], dim=dim))


@pytest.mark.parametrize("block_size", [4, 24, 32, 48])
def test_block_sizes(block_size: int) -> None:
    check_error(make(MIXED + EDGES, block_size=block_size, window=50))


@given(
    rows=st.lists(st.tuples(st.integers(0, 150), st.sampled_from([1, 1, 2, 17, 70])), min_size=1, max_size=4),
    heads=st.sampled_from([(2, 2), (5, 1), (6, 2)]),
    window=st.sampled_from([None, None, 1, 20, 64]),
    shared=st.sampled_from([0, 64, 96]),
    seed=st.integers(0, 99),
)
def test_any_step(
    rows: list[tuple[int, int]], heads: tuple[int, int], window: int | None, shared: int, seed: int
) -> None:
    shared = shared if any(context >= shared for context, _ in rows) else 0
    check_error(make(rows, heads=heads[0], kv_heads=heads[1], dim=32, window=window, shared=shared, seed=seed))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_bits_depend_on_the_row_alone(extra: dict[str, Any], threads: int) -> None:
    """Each row alone, in other chunks and other blocks, equals the same row in a mixed batch to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    sizes = {"dim": 32, "heads": 9, "kv_heads": 3, "kv_dtype": torch.bfloat16, **extra}
    try:
        case = make(MIXED + EDGES + LONG, seed=5, dim=32, **extra)
        check_rows_alone(attention, case, run(case), sizes)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (20, 1)], ids=str)
def test_rows_that_share_a_prefix_read_it_once_and_give_the_bits_of_rows_that_do_not(heads: tuple[int, int]) -> None:
    rows = [(240, 1), (257, 1), (130, 1), (211, 1), (295, 1), (20, 1), (290, 30), (199, 1)]
    case = make(rows, shared=200, heads=heads[0], kv_heads=heads[1], block_size=8)
    plan = plan_tiles(case.metadata, case.cache, case.params)
    members = {(count, shared) for _, count, shared in plan.held[2].tolist()}
    assert plan.step.amx == 1
    assert any(count > 1 and shared == 200 // AMX_KEYS * AMX_KEYS for count, shared in members)
    check_error(case)
    together = run(case)
    sizes = {"dim": 64, "heads": heads[0], "kv_heads": heads[1], "kv_dtype": torch.bfloat16}
    for row, (begin, end) in enumerate(pairwise(case.metadata.query_start_loc.tolist())):
        got = ask_alone(attention, case.history[row], case.q[begin:end], sizes)
        assert torch.equal(got, together[begin:end]), row


@pytest.mark.parametrize("part", [0, 1], ids=["key", "value"])
def test_a_number_that_is_none_shows_in_the_rows_that_see_it_and_no_others(part: int) -> None:
    case = make([(40, 1), (33, 1)], heads=2, kv_heads=1)
    block = int(case.metadata.groups[0].block_tables[0, 1])
    case.cache.block(block)[part, 0, 3, 5] = float("nan")  # key 19 of the first row
    out = run(case)
    assert out[0].isnan().any()
    assert out[1].isfinite().all()


def test_scores_far_apart_neither_overflow_nor_leave_the_thread_without_small_numbers() -> None:
    """Weights below 2^-126 are zero, and what makes them so ends with the call."""
    case = make([(40, 1), (0, 133)], heads=2, kv_heads=1)
    case.q.mul_(1024)  # exact
    with torch.inference_mode():
        out = run(case)
        tiny = torch.tensor([2.0**-120]) * 2.0**-10
    assert out.isfinite().all()
    assert tiny.item() == 2.0**-130
    values = case.history[0][:, 1, :]  # one weight takes all, or nearly
    first = (case.q[0] @ case.history[0][:, 0, :].T).argmax(-1)
    torch.testing.assert_close(out[0].view(2, -1), values[first], rtol=1e-2, atol=1e-2)


def test_a_lower_level_has_the_kernel_of_registers() -> None:
    case = make(MIXED)
    before = native.isa()
    try:
        assert plan_tiles(case.metadata, case.cache, case.params).step.amx == 1
        native.set_isa("avx512")
        assert plan_tiles(case.metadata, case.cache, case.params).step.amx == 0
    finally:
        native.set_isa(before)
    for other in (make(MIXED, dim=40), make_case(MIXED, dim=64, kv_dtype=torch.float16)):
        assert plan_tiles(other.metadata, other.cache, other.params).step.amx == 0
