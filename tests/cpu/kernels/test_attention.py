"""Both attention kernels give what the definition gives, for any step, and never read what a row does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.cpu.kernels.cases import Case, check_rows_alone, make_case, naive

from paceline.errors import UnsupportedError
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.reference.attention import attention as reference
from paceline.runtime.kernels.torch_cpu.attention import attention as torch_cpu

KERNELS = {"reference": reference, "torch-cpu": torch_cpu}
if not native.why_not():
    from paceline.runtime.kernels.cpu.attention import attention as native_attention

    KERNELS["native"] = native_attention
INVARIANT = {name: kernel for name, kernel in KERNELS.items() if name != "torch-cpu"}
STEPS = {
    "one decode row": [(37, 1)],
    "first token": [(0, 1)],
    "decode at block edges": [(15, 1), (16, 1), (17, 1), (31, 1), (32, 1)],
    "decode of unequal rows": [(3, 1), (300, 1), (40, 1), (41, 1), (700, 1), (42, 1)],
    "whole prompts": [(0, 20), (0, 33), (0, 16)],
    "later chunks": [(16, 20), (33, 40), (5, 3)],
    "mixed": [(40, 1), (0, 50), (7, 1), (64, 30), (100, 1), (31, 2)],
    "beyond one tile": [(250, 20), (0, 300), (600, 1)],
}


def run(kernel: Callable[..., torch.Tensor], case: Case) -> torch.Tensor:
    with torch.inference_mode():
        return kernel(case.q, case.kv, case.cache, case.fresh(), case.params)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("extra", [{}, {"window": 24}, {"softcap": 2.0}, {"window": 40, "softcap": 3.0}], ids=str)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_matches_the_definition(kernel: Callable[..., torch.Tensor], step: Any, extra: dict[str, Any]) -> None:
    case = make_case(step, **extra)
    torch.testing.assert_close(run(kernel, case), naive(case).float(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (8, 1), (9, 3)], ids=str)
@pytest.mark.parametrize("block_size", [4, 32])
def test_head_ratios_and_block_sizes(
    kernel: Callable[..., torch.Tensor], heads: tuple[int, int], block_size: int
) -> None:
    case = make_case(STEPS["mixed"], heads=heads[0], kv_heads=heads[1], dim=32, block_size=block_size, seed=3)
    torch.testing.assert_close(run(kernel, case), naive(case).float(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_rows_that_share_a_prefix(kernel: Callable[..., torch.Tensor]) -> None:
    rows = [(80, 1), (97, 1), (130, 1), (81, 1), (95, 1), (20, 1), (90, 30), (79, 1)]
    case = make_case(rows, shared=80)
    torch.testing.assert_close(run(kernel, case), naive(case).float(), rtol=0, atol=2e-5)


def test_the_fast_kernel_reads_a_shared_prefix_once() -> None:
    from paceline.runtime.kernels.torch_cpu.plan import plan_step

    case = make_case([(80, 1), (97, 1), (130, 1), (81, 1), (95, 1)], shared=80)
    plan = plan_step(case.metadata, case.cache, case.params, torch.float32)
    assert [family.num_shared for family in plan.decode] == [80]
    gathered = sum(batch.num_rows * batch.num_slots for batch in plan.decode[0].batches)
    assert gathered < 5 * 80


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_half_precision_stays_close(kernel: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    case = make_case(STEPS["mixed"], dtype=dtype)
    out = run(kernel, case)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), naive(case).float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("extra", [{}, {"window": 24}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("kernel", INVARIANT.values(), ids=INVARIANT)
def test_bits_depend_on_the_row_alone(kernel: Callable[..., torch.Tensor], extra: dict[str, Any], threads: int) -> None:
    """Each row alone, in other chunks and other blocks, equals the same row in a mixed batch to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        case = make_case(STEPS["mixed"] + STEPS["beyond one tile"], seed=5, **extra)
        check_rows_alone(kernel, case, run(kernel, case), extra)
    finally:
        torch.set_num_threads(before)


def test_reference_refuses_block_sizes_that_cross_tiles() -> None:
    with pytest.raises(UnsupportedError, match="block_size 24"):
        run(reference, make_case([(30, 1)], block_size=24))
