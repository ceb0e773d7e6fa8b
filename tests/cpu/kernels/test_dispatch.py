"""The dispatch table: who serves, why, and what an unknown wish is told."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import UnsupportedError
from paceline.runtime.kernels import dispatch
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.dispatch import FLOATS, OPS, TABLE, choose, explain, pick


def test_every_row_can_be_loaded() -> None:
    for row in TABLE:
        assert row.load() is not None, row


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_every_op_is_served_and_explained(dtype: torch.dtype, numerics: dispatch.Numerics) -> None:
    lines = explain("cpu", dtype, numerics)
    assert [line.op for line in lines] == list(OPS)
    for line in lines:
        assert line.reason
        assert all(lacked for _, lacked in line.passed_over)
        assert pick(line.op, "cpu", dtype, numerics) is choose(line.op, "cpu", dtype, numerics).load()


def test_reference_numerics_use_reference_kernels_only() -> None:
    for op in OPS:
        assert ".reference." in choose(op, "cpu", torch.float32, "reference").where


def test_a_dtype_without_instructions_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """In registers by the native kernel, else once in memory."""
    monkeypatch.setattr(dispatch, "native_half", lambda dtype: dtype == torch.float32)
    monkeypatch.setattr(native, "why_not", lambda: "")
    monkeypatch.setattr(native, "multiplies_bf16", lambda: False)
    assert choose("linear", "cpu", torch.bfloat16, "fast").name == "native"
    assert choose("linear", "cpu", torch.float16, "fast").name == "widened"
    monkeypatch.setattr(native, "why_not", lambda: "no compiler")
    assert choose("linear", "cpu", torch.bfloat16, "fast").name == "widened"
    monkeypatch.setattr(dispatch, "native_half", lambda _dtype: True)
    assert choose("linear", "cpu", torch.bfloat16, "fast").name == "torch"


def test_without_native_kernels_torch_serves_and_the_table_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "why_not", lambda: "there is no C++ compiler")
    line = next(line for line in explain("cpu", torch.float32, "fast") if line.op == "linear")
    assert line.kernel == "onednn-packed"
    assert ("native", "the native library does not serve: there is no C++ compiler") in line.passed_over


def test_unknown_dtype_or_op_is_refused_with_the_reasons() -> None:
    with pytest.raises(UnsupportedError, match=r"for float32, bfloat16, float16"):
        pick("linear", "cpu", torch.float64, "fast")
    with pytest.raises(UnsupportedError, match="one of linear"):
        pick("convolution", "cpu", torch.float32, "fast")
