"""Levels of instructions: names, the cap, and that kernels give the same bits at each level that this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cpu.kernels.cases import make_case

from paceline.assemble.isa import isa_line, limit_isa
from paceline.config import read_environment
from paceline.errors import ConfigError
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.dispatch import TABLE, choose, explain

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())
if not native.why_not():
    from paceline.runtime.kernels.cpu import elementwise
    from paceline.runtime.kernels.cpu.attention import attention
    from paceline.runtime.kernels.cpu.blocks import LAYOUTS, NativeBlocks
    from paceline.runtime.kernels.cpu.kv_write import write_int8_kv
    from paceline.runtime.kernels.cpu.linear import NativeLinear


@contextmanager
def capped(level: str) -> Iterator[None]:
    before = native.isa()
    try:
        assert native.set_isa(level) == level
        yield
    finally:
        native.set_isa(before)


def same_at_every_level(run: Callable[[], torch.Tensor], but: str = "") -> None:
    """Compares bits, so that -0 is not 0 and a NaN is itself. `but`: a level with bits of its own."""
    with capped("avx2"):
        expected = run().clone()
    for level in native.isa_levels():
        if level == but:
            continue
        with capped(level):
            assert torch.equal(run().view(torch.int32), expected.view(torch.int32)), level


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_levels_have_names_in_order_and_a_cap_lowers_them() -> None:
    levels = native.isa_levels()
    assert levels[0] == "avx2"
    assert native.isa() == levels[-1]
    for level in levels:
        with capped(level):
            assert native.isa() == level
            assert native.best_level(levels) == level
            assert native.best_level(["avx2"]) == "avx2"
    assert native.isa() == levels[-1]
    with pytest.raises(ValueError, match="avx512, vnni512, amx"):
        native.set_isa("neon")
    assert native.isa() == levels[-1]


def test_a_level_above_the_machines_is_no_cap() -> None:
    levels, before = native.isa_levels(), native.isa()
    try:
        assert native.set_isa("amx") == levels[-1]
        assert native.set_isa("avxvnni") in ("avx2", "avxvnni")
    finally:
        native.set_isa(before)


def test_the_environment_caps_and_the_table_names_the_level_in_use() -> None:
    before = native.isa()
    try:
        limit_isa(read_environment({}))
        assert native.isa() == before
        limit_isa(read_environment({"PACELINE_CPU_ISA": "avx2"}))
        assert native.isa() == "avx2"
        assert "up to avx2" in isa_line()
        named = {line.op: line.kernel for line in explain("cpu", torch.float32, "fast")}
        assert named["linear"] == named["attention"] == "native-avx2"
        with pytest.raises(ConfigError, match="PACELINE_CPU_ISA"):
            limit_isa(read_environment({"PACELINE_CPU_ISA": "sse"}))
    finally:
        native.set_isa(before)
    if "avx512" in native.isa_levels():
        row = choose("linear", "cpu", torch.float32, "fast")
        assert row.label == "native-avx512"
        with capped("avx512"):
            assert row.label == "native-avx512"


def test_levels_of_the_table_are_levels() -> None:
    for row in TABLE:
        assert set(row.levels) <= {"avx2", "avxvnni", "avx512", "vnni512", "amx"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(rows=st.integers(1, 60), outputs=st.integers(1, 120), inputs=st.integers(1, 90), bias=st.booleans())
def test_products_of_floats(dtype: torch.dtype, rows: int, outputs: int, inputs: int, bias: bool) -> None:
    draw = draws(rows)
    packed = NativeLinear.pack(torch.randn(outputs, inputs, generator=draw).to(dtype))
    x, offset = torch.randn(rows, inputs, generator=draw), torch.randn(outputs, generator=draw) if bias else None
    same_at_every_level(lambda: NativeLinear.apply(x, packed, offset))


@pytest.mark.parametrize("ggml_type", list(LAYOUTS) if not native.why_not() else [])
def test_products_of_blocks(ggml_type: int, threads: int) -> None:
    block, size = LAYOUTS[ggml_type]
    torch.set_num_threads(threads)
    for rows, outputs in [(1, 97), (2, 64), (3, 40), (5, 33), (8, 96), (12, 17), (40, 130)]:
        raw = np.random.default_rng(rows).integers(0, 256, (outputs * 2, size), dtype=np.uint8)
        scales = np.random.default_rng(rows).uniform(-0.1, 0.1, (outputs * 2, 2)).astype(np.float16).view(np.uint8)
        raw[:, :4] = scales.reshape(len(raw), 4)
        if ggml_type == 14:
            raw[:, -2:] = scales.reshape(len(raw), 4)[:, :2]
        packed = NativeBlocks.pack(raw.reshape(-1), ggml_type, outputs, 2 * block)
        x = torch.randn(rows, 2 * block, generator=draws(rows))
        same_at_every_level(lambda x=x, packed=packed: NativeBlocks.apply(x, packed, None))  # type: ignore[misc]


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize(("heads", "dim"), [((9, 3), 64), ((5, 1), 24), ((16, 1), 8), ((4, 4), 136)], ids=str)
def test_attention(kv_dtype: torch.dtype, heads: tuple[int, int], dim: int, threads: int) -> None:
    torch.set_num_threads(threads)
    tiles = "amx" if kv_dtype == torch.bfloat16 and dim % 32 == 0 else ""  # test_attention_amx.py
    for softcap, window in [(None, None), (20.0, None), (None, 30)]:
        rows = [(80, 1), (97, 1), (40, 1), (5, 60), (0, 3)]
        case = make_case(
            rows,
            heads=heads[0],
            kv_heads=heads[1],
            dim=dim,
            kv_dtype=kv_dtype,
            softcap=softcap,
            window=window,
            shared=40,
        )
        same_at_every_level(
            lambda case=case: attention(case.q, case.kv, case.cache, case.fresh(), case.params),  # type: ignore[misc]
            but=tiles,
        )


@given(rows=st.integers(1, 9), size=st.integers(1, 70), heads=st.integers(1, 3))
def test_normalisation(rows: int, size: int, heads: int) -> None:
    x, weight = torch.randn(rows, heads, size, generator=draws(size)), torch.randn(size, generator=draws(rows))
    x[0, 0, 0] = 1e-30
    same_at_every_level(lambda: elementwise.rms_norm(x, weight, 1e-6))


@given(rows=st.integers(1, 9), half=st.integers(1, 9), heads=st.integers(1, 3))
def test_rotation(rows: int, half: int, heads: int) -> None:
    draw = draws(rows)
    x = torch.randn(rows, heads, 16 * half, generator=draw)
    cos, sin = torch.randn(rows, 1, 16 * half, generator=draw), torch.randn(rows, 1, 16 * half, generator=draw)

    def run() -> torch.Tensor:
        turned = x.clone()
        elementwise.rope(turned, cos, sin)
        return turned

    same_at_every_level(run)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activation(activation: str) -> None:
    """Where the exponential is 0, infinite in float32, and for what is no number, too."""
    for size in (8, 16, 24, 72):
        gate_up = torch.linspace(-120, 120, 2 * size * 7).view(7, 2 * size).clone()
        gate_up[3, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
        same_at_every_level(lambda g=gate_up: elementwise.gated(g, activation))  # type: ignore[misc]


def test_keys_and_values_of_8_bits() -> None:
    case = make_case([(0, 40)], dim=72, kv_dtype=torch.int8)

    def run() -> torch.Tensor:
        case.cache.kv.zero_()
        write_int8_kv(case.kv.float(), case.cache, case.metadata.groups[0].slot_mapping)
        return case.cache.kv.to(torch.int32)

    same_at_every_level(run)
