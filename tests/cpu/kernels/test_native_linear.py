"""The native product: right, and every row the same bits whatever is computed beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime.kernels.cpu import build, native
from paceline.runtime.kernels.cpu.linear import NativeLinear
from paceline.runtime.kv_cache import Workspace

DTYPES = [torch.float32, torch.bfloat16]
needs_library = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())


def test_the_library_is_there_wherever_it_can_be_compiled() -> None:
    if build.why_not():
        pytest.skip(build.why_not())
    assert build.LIBRARY.exists()
    assert "sources" not in native.why_not(), "compiled from other sources than these"


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(0, 40), outputs=st.integers(1, 100), inputs=st.integers(1, 200), seed=st.integers(0, 9))
def test_matches_float64_within_the_error_of_one_chain_of_sums(
    dtype: torch.dtype, bias: bool, rows: int, outputs: int, inputs: int, seed: int
) -> None:
    """|error| <= K eps sum |x w| for a chain of K rounded fused multiply-adds (Higham 2002, section 3.1)."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=draw).to(dtype)
    weight = torch.randn(outputs, inputs, generator=draw).to(dtype)
    offset = torch.randn(outputs, generator=draw).to(dtype) if bias else None
    out = NativeLinear.apply(x, NativeLinear.pack(weight), offset)
    exact = x.double() @ weight.double().T
    bound = (inputs + 1) * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    if offset is not None:
        exact += offset.double()
        bound += 2.0**-24 * exact.abs()
    if dtype == torch.bfloat16:
        bound += 2.0**-8 * exact.abs() + 2.0**-8 * bound
    assert out.dtype == dtype
    assert out.shape == (rows, outputs)
    assert bool(((out.double() - exact).abs() <= bound + 1e-30).all())


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_whatever_its_mates_and_threads(dtype: torch.dtype, threads: int) -> None:
    for outputs, inputs in [(960, 576), (97, 80), (48, 1536)]:
        draw = torch.Generator().manual_seed(outputs)
        x = torch.randn(150, inputs, generator=draw).to(dtype)
        packed = NativeLinear.pack(torch.randn(outputs, inputs, generator=draw).to(dtype))
        bias = torch.randn(outputs, generator=draw).to(dtype)
        torch.set_num_threads(1)
        alone = torch.cat([NativeLinear.apply(row[None], packed, bias) for row in x])
        torch.set_num_threads(threads)
        for count in (*range(1, 20), 64, 121):
            assert torch.equal(NativeLinear.apply(x[29 : 29 + count], packed, bias), alone[29 : 29 + count]), count


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (15, 3), (16, 8), (33, 80)])
def test_packing_loses_nothing(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).to(dtype)
    packed = NativeLinear.pack(weight.t().contiguous().t())  # from any strides
    assert torch.equal(NativeLinear.unpack(packed), weight)
    assert packed.nbytes == -(-shape[0] // 16) * 16 * shape[1] * weight.element_size()
    ids = torch.tensor([shape[0] - 1, 0, shape[0] - 1])
    assert torch.equal(NativeLinear.gather(packed, ids), weight[ids])


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_lie_apart_and_results_in_scratch_memory(dtype: torch.dtype) -> None:
    packed = NativeLinear.pack(torch.randn(40, 24).to(dtype))
    wide = torch.randn(9, 48).to(dtype)
    expected = NativeLinear.apply(wide[:, :24].contiguous(), packed, None)
    assert torch.equal(NativeLinear.apply(wide[:, :24], packed, None), expected)
    assert torch.equal(NativeLinear.apply(wide.t().contiguous().t()[:, :24], packed, None), expected)
    scratch = Workspace()
    first = NativeLinear.apply(wide[:, :24], packed, None, scratch)
    assert torch.equal(first, expected)
    taken = scratch.num_bytes
    assert taken == 9 * 40 * 4
    again = NativeLinear.apply(wide[:4, 24:], packed, None, scratch)
    assert torch.equal(again, NativeLinear.apply(wide[:4, 24:].contiguous(), packed, None))
    assert scratch.num_bytes == taken


@needs_library
@pytest.mark.parametrize("bad", [-1, 33])
def test_an_id_outside_the_weight_is_refused(bad: int) -> None:
    with pytest.raises(IndexError, match=f"row {bad} of a weight with 33 rows"):
        NativeLinear.gather(NativeLinear.pack(torch.randn(33, 4)), torch.tensor([0, bad, 1]))


@needs_library
def test_what_the_native_code_would_read_outside_of_is_refused() -> None:
    packed = NativeLinear.pack(torch.randn(33, 8))
    for x, bias in [
        (torch.randn(2, 4096), None),
        (torch.randn(2, 4), None),
        (torch.randn(1, 2, 8), None),
        (torch.randn(2, 8), torch.randn(32)),
    ]:
        with pytest.raises(AssertionError):
            NativeLinear.apply(x, packed, bias)
    for ids in [torch.tensor([1], dtype=torch.int32), torch.tensor([[1]])]:
        with pytest.raises(AssertionError):
            NativeLinear.gather(packed, ids)


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_matter(dtype: torch.dtype) -> None:
    packed = NativeLinear.pack(torch.randn(33, 8).to(dtype))
    x, bias = torch.randn(16, 10).to(dtype).t()[:, ::2], torch.randn(66).to(dtype)[::2]
    whole = NativeLinear.apply(x.clone(memory_format=torch.contiguous_format), packed, bias.clone())
    assert torch.equal(NativeLinear.apply(x, packed, bias), whole)


@needs_library
def test_extreme_values_pass_through() -> None:
    """Infinities and NaN of activations come out where they belong; padding adds nothing to them."""
    packed = NativeLinear.pack(torch.ones(17, 3))
    out = NativeLinear.apply(torch.tensor([[1.0, 2.0, 3.0], [torch.inf, 0, 0], [torch.nan, 0, 0]]), packed, None)
    assert out[0].tolist() == [6.0] * 17
    assert bool(out[1].isposinf().all())
    assert bool(out[2].isnan().all())


def test_a_failed_build_says_what_the_compiler_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if build.why_not():
        pytest.skip(build.why_not())
    broken = tmp_path / "csrc"
    shutil.copytree(build.SOURCES, broken)
    (broken / "isa.cpp").write_text("this is not C++")
    monkeypatch.setattr(build, "SOURCES", broken)
    monkeypatch.setattr(build, "UNITS", tuple(unit for unit in build.UNITS if unit[0] == "isa.cpp"))
    with pytest.raises(RuntimeError, match=r"isa\.cpp"):
        build.compile_library(tmp_path / "native.so")
    assert not (tmp_path / "native.so").exists()


def test_the_digest_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "csrc"
    shutil.copytree(build.SOURCES, copy)
    before = build.source_digest()
    monkeypatch.setattr(build, "SOURCES", copy)
    assert build.source_digest() == before
    with (copy / "linear.h").open("a") as file:
        file.write("\n")
    assert build.source_digest() != before
