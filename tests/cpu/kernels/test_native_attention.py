"""The native attention kernel: what it reads, what it leaves to torch, and that sharing a prefix changes no bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.cpu.kernels.cases import Case, make_case, naive

from paceline.runtime.kernels.cpu import native
from paceline.runtime.kv_cache import LayerCache

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())

if not native.why_not():
    from paceline.runtime.kernels.cpu.attention import attention, plan_tiles


def run(case: Case, cache: LayerCache | None = None) -> torch.Tensor:
    with torch.inference_mode():
        return attention(case.q, case.kv, cache or case.cache, case.fresh(), case.params).clone()


@pytest.mark.parametrize("dim", [8, 24, 64, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (16, 1), (12, 4)], ids=str)
def test_head_sizes(dim: int, heads: tuple[int, int]) -> None:
    case = make_case([(40, 1), (0, 50), (7, 1), (64, 30)], heads=heads[0], kv_heads=heads[1], dim=dim)
    torch.testing.assert_close(run(case), naive(case).float(), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("heads", "dim"), [((4, 2), 12), ((49, 1), 16)], ids=str)
def test_shapes_it_does_not_know_go_to_torch(heads: tuple[int, int], dim: int) -> None:
    case = make_case([(40, 1), (0, 20)], heads=heads[0], kv_heads=heads[1], dim=dim)
    torch.testing.assert_close(run(case), naive(case).float(), rtol=0, atol=2e-5)


def test_rows_that_share_a_prefix_read_it_once_and_give_the_bits_of_rows_that_do_not() -> None:
    rows = [(80, 1), (97, 1), (130, 1), (81, 1), (95, 1), (20, 1), (90, 30), (79, 1)]
    case = make_case(rows, shared=80)
    plan = plan_tiles(case.metadata, case.cache, case.params)
    tiles = {tuple(tile) for tile in plan.held[2][:, 1:].tolist()}
    assert (5, 80) in tiles, "five decoding rows hold the whole prefix"
    together = run(case)
    group = case.metadata.groups[0]
    for at, (row, (_, count)) in zip(case.metadata.query_start_loc.tolist(), enumerate(rows), strict=False):
        one = dataclasses.replace(case, q=case.q[at : at + count], kv=case.kv[at : at + count])
        one.metadata = dataclasses.replace(
            case.metadata,
            query_start_loc=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=case.metadata.seq_lens[row : row + 1],
            query_lens=case.metadata.query_lens[row : row + 1],
            context_lens=case.metadata.context_lens[row : row + 1],
            groups=(dataclasses.replace(group, block_tables=group.block_tables[row : row + 1], plan=None),),
        )
        assert torch.equal(run(one), together[at : at + count]), row


def test_threads_change_no_bit() -> None:
    case = make_case([(300, 1), (0, 200), (40, 1), (500, 64)], heads=9, kv_heads=3, dim=64)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(run(case))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("part", [0, 1], ids=["key", "value"])
def test_a_number_that_is_none_shows_in_the_rows_that_see_it_and_no_others(part: int) -> None:
    """The runner finds a broken row by its results, so a kernel must not swallow what broke it."""
    case = make_case([(40, 1), (33, 1)], heads=2, kv_heads=1)
    block = int(case.metadata.groups[0].block_tables[0, 1])
    case.cache.block(block)[part, 0, 3, 5] = float("nan")  # key 19 of the first row
    out = run(case)
    assert out[0].isnan().any()
    assert out[1].isfinite().all()


def test_scores_far_apart_do_not_overflow() -> None:
    case = make_case([(40, 1), (0, 33)], heads=2, kv_heads=1)
    case.q.mul_(1e4)
    torch.testing.assert_close(run(case), naive(case).float(), rtol=0, atol=1e-3)
