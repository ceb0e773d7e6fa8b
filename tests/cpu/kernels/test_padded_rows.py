"""Few products are compiled, whatever sizes steps have, and the ledger counts them."""

from __future__ import annotations

import torch

from paceline.cost.workspace import COMPILED_BYTES, compiled_products_bytes
from paceline.runtime.kernels.torch_cpu.linear import PackedLinear, padded_rows


def test_less_than_an_eighth_is_computed_in_vain() -> None:
    for count in range(1, 5000):
        assert count <= padded_rows(count) < count * 9 / 8
    assert [padded_rows(count) for count in range(1, 17)] == list(range(1, 17))


def test_the_ledger_counts_the_row_numbers_that_occur() -> None:
    for most in (1, 16, 17, 52, 304, 2048):
        numbers = {padded_rows(count) for count in range(1, most + 1)}
        assert compiled_products_bytes(most) == 5 * len(numbers) * COMPILED_BYTES
    assert len({padded_rows(count) for count in range(1, 2049)}) == 72


def test_padding_does_not_show() -> None:
    weight, bias = torch.randn(33, 80), torch.randn(33)
    packed = PackedLinear.pack(weight)
    for count in (15, 17, 33, 63, 129):
        x = torch.randn(count, 80)
        for offset in (None, bias):
            out = PackedLinear.apply(x, packed, offset)
            torch.testing.assert_close(out, torch.nn.functional.linear(x, weight, offset), rtol=1e-5, atol=1e-4)
