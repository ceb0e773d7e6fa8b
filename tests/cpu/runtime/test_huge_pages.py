"""Weights that move keep their content and their identity, and lie in order."""

from __future__ import annotations

import mmap

import pytest
import torch

from paceline.runtime.huge_pages import HUGE_PAGE, LEAST_BYTES, move_to_huge_pages, zeroed

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages on request here")


def weights() -> list[torch.Tensor]:
    return [
        torch.arange(1 << 20, dtype=torch.float32).view(16, -1),
        torch.arange(100, dtype=torch.uint8),
        torch.randn(3, 7, 16).bfloat16(),
        torch.randn(LEAST_BYTES // 4),
    ]


def test_tensors_keep_what_they_hold() -> None:
    moved, kept = weights(), None
    kept = [tensor.clone() for tensor in moved]
    addresses = [tensor.data_ptr() for tensor in moved]
    view = moved[0][3]  # of the old memory: what else looks at it does not move
    total = move_to_huge_pages(moved)
    assert total >= sum(tensor.nbytes for tensor in kept)
    for tensor, before, address in zip(moved, kept, addresses, strict=True):
        assert torch.equal(tensor, before)
        assert (tensor.dtype, tensor.shape) == (before.dtype, before.shape)
        assert tensor.is_contiguous()
        assert tensor.data_ptr() != address
    assert torch.equal(view, kept[0][3])


def test_they_lie_one_after_another_from_a_huge_page_on() -> None:
    moved = weights()
    move_to_huge_pages(moved)
    addresses = [tensor.data_ptr() for tensor in moved]
    assert addresses[0] % HUGE_PAGE == 0
    assert addresses == sorted(addresses)
    assert all(address % 64 == 0 for address in addresses)
    for tensor, following in zip(moved, addresses[1:], strict=False):
        assert 0 <= following - (tensor.data_ptr() + tensor.nbytes) < 64


def test_the_mapping_lives_as_long_as_any_of_them() -> None:
    moved = weights()
    move_to_huge_pages(moved)
    last = moved.pop()
    expected = last.clone()
    del moved
    torch.zeros(LEAST_BYTES)  # whatever was freed would be taken
    assert torch.equal(last, expected)


def test_little_stays_where_it_is() -> None:
    small = torch.ones(1000)
    address = small.data_ptr()
    assert move_to_huge_pages([small]) == 0
    assert move_to_huge_pages([]) == 0
    assert small.data_ptr() == address


def test_zeros_begin_at_a_huge_page_and_can_be_written() -> None:
    memory = zeroed(LEAST_BYTES + 100)
    assert memory.shape == (LEAST_BYTES + 100,)
    assert memory.data_ptr() % HUGE_PAGE == 0
    assert not memory.any()
    memory.fill_(7)
    assert int(memory[-1]) == 7
    assert not zeroed(100).any()


def test_more_zeros_than_there_are_addresses_for_are_refused() -> None:
    with pytest.raises(MemoryError, match="mapping"):
        zeroed(1 << 50)
