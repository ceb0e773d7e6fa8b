"""Norm, rotation, activation, largest logit: fast kernels agree with the reference, whose rows are independent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from paceline.runtime.kernels.cpu import elementwise as native
from paceline.runtime.kernels.cpu.native import isa, isa_levels, set_isa, why_not
from paceline.runtime.kernels.reference import elementwise as reference
from paceline.runtime.kernels.reference.largest import largest as reference_largest
from paceline.runtime.kernels.torch_cpu import elementwise as fast
from paceline.runtime.kv_cache import Workspace

DTYPES = [torch.float32, torch.bfloat16]
COUNTS = [1, 2, 3, 16, 17, 100]
MODULES = [reference, fast] if why_not() else [reference, fast, native]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", MODULES)
def test_rms_norm(module: Any, dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 3, 48).to(dtype), torch.rand(3, 48) + 0.5
    expected = F.rms_norm(x.float(), (48,), eps=1e-5) * weight
    out = module.rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=0.01 if dtype != torch.float32 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", MODULES)
def test_rope_turns_pairs_in_place_and_nothing_else(module: Any, dtype: torch.dtype) -> None:
    whole = torch.randn(5, 7, 16).to(dtype)
    kept, turned = whole.clone(), whole[:, :4]
    angles = torch.rand(5, 1, 8) * 6
    cos, sin = angles.cos(), angles.sin()
    first, second = turned.float().chunk(2, -1)
    expected = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    module.rope(turned, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    torch.testing.assert_close(whole[:, :4].float(), expected, rtol=0.01 if dtype != torch.float32 else 1e-5, atol=1e-5)
    assert torch.equal(whole[:, 4:], kept[:, 4:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gated(module: Any, activation: str, dtype: torch.dtype) -> None:
    gate_up = torch.randn(5, 96).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    act = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda g: F.gelu(g, approximate="tanh")}[activation]
    out = module.gated(gate_up, activation)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), act(gate) * up, rtol=0.02 if dtype != torch.float32 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [40, 100, 1536])
def test_reference_rows_are_independent(size: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight = torch.randn(120, 2 * size), torch.rand(2 * size)
        normed = reference.rms_norm(x, weight, 1e-6)
        active = {name: reference.gated(x, name) for name in ("silu", "gelu", "gelu_tanh")}
        for count in COUNTS:
            part = x[7 : 7 + count].clone()
            assert torch.equal(reference.rms_norm(part, weight, 1e-6), normed[7 : 7 + count])
            for name, whole in active.items():
                assert torch.equal(reference.gated(part, name), whole[7 : 7 + count]), name
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
class TestNative:
    """What the reference suite above does not ask of one call per layer."""

    @pytest.mark.parametrize("size", [1, 7, 8, 40, 576, 1003])
    def test_a_row_of_a_norm_has_its_bits_in_any_company(self, size: int) -> None:
        x, weight = torch.randn(70, size), torch.rand(size) + 0.5
        together = native.rms_norm(x, weight, 1e-6)
        torch.testing.assert_close(together, reference.rms_norm(x, weight, 1e-6), rtol=1e-5, atol=1e-6)
        for begin, end in ((0, 1), (3, 20), (69, 70)):
            assert torch.equal(native.rms_norm(x[begin:end], weight, 1e-6), together[begin:end])

    def test_rows_may_lie_apart(self) -> None:
        wide = torch.randn(9, 100)
        weight = torch.rand(40)
        assert torch.equal(
            native.rms_norm(wide[:, 10:50], weight, 1e-5), native.rms_norm(wide[:, 10:50].clone(), weight, 1e-5)
        )
        assert torch.equal(native.gated(wide[:, 2:98], "silu"), native.gated(wide[:, 2:98].clone(), "silu"))

    @pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
    def test_an_activation_is_right_far_from_zero(self, activation: str) -> None:
        gate = torch.tensor(
            [-1e30, -200.0, -88.0, -30.0, -1e-30, 0.0, 1e-30, 30.0, 88.0, 200.0, 1e30, 3.0, -3, 0, 0, 0]
        )
        gate_up = torch.cat((gate, torch.full_like(gate, 2.0)))[None]
        expected = reference.gated(gate_up, activation)
        torch.testing.assert_close(native.gated(gate_up, activation), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
    def test_a_number_that_is_none_stays_one(self, activation: str) -> None:
        gate_up = torch.zeros(1, 32)
        gate_up[0, 3] = float("nan")
        assert native.gated(gate_up, activation).isnan().nonzero().tolist() == [[0, 3]]
        assert native.rms_norm(gate_up, torch.ones(32), 1e-5).isnan().all()

    def test_scratch_holds_the_result_and_large_work_is_shared(self) -> None:
        gate_up, scratch = torch.randn(600, 512), Workspace()
        alone = native.gated(gate_up, "silu")
        assert torch.equal(native.gated(gate_up, "silu", scratch), alone)
        assert scratch.num_bytes == alone.nbytes
        assert torch.equal(native.gated(gate_up[17:18], "silu"), alone[17:18])

    @pytest.mark.parametrize("level", [] if why_not() else ["avx2", isa_levels()[-1]])
    @pytest.mark.parametrize("size", [1, 15, 31, 32, 33, 1000, 1024, 1025, 2048, 5000])
    def test_the_largest_logit_is_the_first_of_equal_ones(self, size: int, level: str) -> None:
        logits = torch.randint(-9, 9, (9, size)).float()  # so that many are equal
        logits[1] = 0.0
        logits[2] = float("-inf")
        logits[3, -1] = float("inf")
        logits[4, size // 2] = 20.0
        before = isa()
        try:
            set_isa(level)
            value, place = native.largest(logits)
        finally:
            set_isa(before)
        assert torch.equal(value, logits.amax(1))
        assert torch.equal(place, logits.argmax(1))
        assert all(torch.equal(a, b) for a, b in zip(reference_largest(logits), (value, place), strict=True))

    @pytest.mark.parametrize("at", [0, 17, 31, 32, 1023, 1030, 1039])
    def test_a_row_with_a_nan_says_so_and_others_do_not(self, at: int) -> None:
        logits = torch.randn(3, 1040)
        logits[1, at] = float("nan")
        value, place = native.largest(logits)
        assert value.isnan().tolist() == [False, True, False]
        assert 0 <= int(place[1]) < 1040
        assert torch.equal(value[::2], logits[::2].amax(1))

    def test_logits_may_lie_apart(self) -> None:
        wide = torch.randn(70, 3000)
        assert torch.equal(native.largest(wide[:, 100:2100])[1], wide[:, 100:2100].argmax(1))
        assert torch.equal(native.largest(wide.bfloat16())[0], wide.bfloat16().amax(1))
        assert torch.equal(native.largest(wide.T)[1], wide.T.argmax(1))
