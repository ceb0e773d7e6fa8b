"""Which kernel serves which op: a table that `paceline doctor` prints.

Rows are tried in order; the first whose conditions hold serves. A condition that fails leaves its words behind, so the
answer to "why this one?" is the list of rows above it with what each lacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch

from paceline.errors import UnsupportedError
from paceline.runtime.kernels.cpu import native

Numerics = Literal["fast", "reference"]

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
REFERENCE, FAST = "paceline.runtime.kernels.reference", "paceline.runtime.kernels.torch_cpu"
NATIVE = "paceline.runtime.kernels.cpu"


@cache
def native_half(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies matrices of the dtype with instructions of its own."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return True


@cache
def _onednn_linear() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _needs_native(dtype: torch.dtype) -> str:
    return "" if native_half(dtype) else f"this CPU has no {_short(dtype)} matrix instructions"


def _needs_onednn(_dtype: torch.dtype) -> str:
    return "" if _onednn_linear() else "this torch build has no oneDNN linear"


def _needs_any_native(_dtype: torch.dtype) -> str:
    return f"the native library does not serve: {reason}" if (reason := native.why_not()) else ""


def _needs_bf16_products(dtype: torch.dtype) -> str:
    if reason := _needs_any_native(dtype):
        return reason
    return "" if native.multiplies_bf16() else "this CPU has no products of bfloat16 (AVX-512 BF16 or AMX)"


def _needs_tiles(dtype: torch.dtype) -> str:
    if reason := _needs_bf16_products(dtype):
        return reason
    return "" if native.isa() == "amx" else "this CPU has no AMX, or the system does not give it"


def _always(_dtype: torch.dtype) -> str:
    return ""


@dataclass(frozen=True)
class Kernel:
    """One row. `lacks(dtype)` is empty when the kernel can run here, else what is missing."""

    op: str
    name: str
    where: str  # "module:attribute"
    why: str  # what it is good for
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[torch.dtype, ...] = FLOATS
    numerics: tuple[Numerics, ...] = ("fast",)
    lacks: Callable[[torch.dtype], str] = _always
    levels: tuple[str, ...] = ()  # of instructions that a native kernel has code for, see csrc/isa.h
    compiles: bool = False  # keeps a compiled product for every number of rows it meets, which takes memory

    @property
    def label(self) -> str:
        """The name, with the level of instructions in use. Ask `lacks` first."""
        return f"{self.name}-{native.best_level(self.levels)}" if self.levels else self.name

    def load(self) -> Any:
        module, attribute = self.where.split(":")
        return getattr(import_module(module), attribute)


BOTH: tuple[Numerics, ...] = ("fast", "reference")
CPU = ("cpu",)
AVX2, AVX512 = ("avx2",), ("avx2", "avx512")
NATIVE_DTYPES = (torch.float32, torch.bfloat16)
HALVES = (torch.bfloat16, torch.float16)
BF16_BLOCKS, REFERENCE_BLOCKS = f"{NATIVE}.blocks:NativeBf16Blocks", f"{REFERENCE}.blocks:ReferenceBlocks"


def _bf16_products(op: str, where: str, why: str, dtype: torch.dtype) -> tuple[Kernel, ...]:
    """Rows of a product of bfloat16, by instruction."""
    forms = (("native-amx", "tiles", _needs_tiles), ("native-avx512bf16", "products of pairs", _needs_bf16_products))
    return tuple(
        Kernel(
            op,
            name,
            where,
            f"{why}, in {form}; bits independent of the batch",
            devices=CPU,
            dtypes=(dtype,),
            lacks=lacks,
        )
        for name, form, lacks in forms
    )


def _by_rows(op: str, why: str, *, module: str = "elementwise", levels: tuple[str, ...] = AVX512) -> Kernel:
    """The native row of an operation on float32 rows."""
    return Kernel(
        op,
        "native",
        f"{NATIVE}.{module}:{op}",
        why,
        devices=CPU,
        dtypes=(torch.float32,),
        lacks=_needs_any_native,
        levels=levels,
    )


TABLE: tuple[Kernel, ...] = (
    *_bf16_products(
        "linear", f"{NATIVE}.linear:NativeBf16Linear", "weights and activations of bfloat16", torch.bfloat16
    ),
    Kernel(
        "linear",
        "torch",
        f"{FAST}.linear:PlainLinear",
        "matrix instructions of the dtype",
        devices=CPU,
        dtypes=HALVES,
        lacks=_needs_native,
    ),
    Kernel(
        "linear",
        "native",
        f"{NATIVE}.linear:NativeLinear",
        "weights in panels, read in one line; bits independent of the batch",
        devices=CPU,
        dtypes=NATIVE_DTYPES,
        lacks=_needs_any_native,
        levels=AVX512,
    ),
    Kernel(
        "linear",
        "onednn-packed",
        f"{FAST}.linear:PackedLinear",
        "weights reordered once at load",
        devices=CPU,
        dtypes=(torch.float32,),
        lacks=_needs_onednn,
        compiles=True,
    ),
    Kernel(
        "linear",
        "widened",
        f"{FAST}.linear:WidenedLinear",
        "half weights kept as float32: twice the memory, many times the speed",
        devices=CPU,
        dtypes=HALVES,
        compiles=True,
    ),
    Kernel("linear", "torch", f"{FAST}.linear:PlainLinear", "the library's product", numerics=("fast",)),
    Kernel(
        "linear",
        "reference",
        f"{REFERENCE}.linear:ReferenceLinear",
        "products of 16 rows: bits independent of the batch",
        numerics=BOTH,
    ),
    *_bf16_products("gguf_linear", BF16_BLOCKS, "blocks stay quantised and widen to bfloat16", torch.bfloat16),
    Kernel(
        "gguf_linear",
        "native",
        f"{NATIVE}.blocks:NativeBlocks",
        "blocks stay quantised and widen in registers; bits of the float product",
        devices=CPU,
        dtypes=NATIVE_DTYPES,
        lacks=_needs_any_native,
        levels=AVX512,
    ),
    Kernel("gguf_linear", "none", REFERENCE_BLOCKS, "blocks become floats at load, then it is `linear`", numerics=BOTH),
    Kernel(
        "gguf_int8_linear",
        "native",
        f"{NATIVE}.blocks:NativeInt8Blocks",
        "activation_dtype=int8: codes of blocks times activations of 8 bits; bits independent of the batch",
        devices=CPU,
        dtypes=NATIVE_DTYPES,
        lacks=_needs_any_native,
        levels=("avx2", "avxvnni", "vnni512", "amx"),
    ),
    Kernel("gguf_int8_linear", "none", REFERENCE_BLOCKS, "activation_dtype=int8 is refused", numerics=BOTH),
    *_bf16_products(
        "gguf_bf16_linear", BF16_BLOCKS, "activation_dtype=bfloat16: weights widen to bfloat16", torch.float32
    ),
    Kernel("gguf_bf16_linear", "none", REFERENCE_BLOCKS, "activation_dtype=bfloat16 is refused", numerics=BOTH),
    Kernel(
        "decoder",
        "native",
        f"{NATIVE}.decoder:NativeDecoder",
        "all blocks in one call; where a part is not native, block by block",
        devices=CPU,
        dtypes=NATIVE_DTYPES,
        lacks=_needs_any_native,
        levels=AVX512,
    ),
    Kernel(
        "decoder",
        "none",
        f"{REFERENCE}.decoder:ReferenceDecoder",
        "block by block, each operation on its own",
        numerics=BOTH,
    ),
    Kernel(
        "attention",
        "native-amx",
        f"{NATIVE}.attention:attention",
        "the native one, in tiles over a cache of bfloat16 where head_dim is a multiple of 32",
        devices=CPU,
        dtypes=(torch.bfloat16,),
        lacks=_needs_tiles,
    ),
    Kernel(
        "attention",
        "native",
        f"{NATIVE}.attention:attention",
        "blocks read where they lie, shared prefixes once; bits independent of the batch",
        devices=CPU,
        lacks=_needs_any_native,
        levels=AVX512,
    ),
    Kernel(
        "attention",
        "torch-cpu",
        f"{FAST}.attention:attention",
        "gathered KV, batched products, shared prefixes once",
        devices=CPU,
    ),
    Kernel("attention", "reference", f"{REFERENCE}.attention:attention", "fixed tiles in one order", numerics=BOTH),
    Kernel(
        "int8_attention",
        "native",
        f"{NATIVE}.attention:attention",
        "kv_cache_dtype=int8: codes widen in registers; bits independent of the batch",
        devices=CPU,
        lacks=_needs_any_native,
        levels=AVX512,
    ),
    Kernel(
        "int8_attention",
        "reference",
        f"{REFERENCE}.attention:attention",
        "kv_cache_dtype=int8: gathered codes become floats; fixed tiles in one order",
        numerics=BOTH,
    ),
    Kernel(
        "write_kv",
        "native",
        f"{NATIVE}.kv_write:write_kv",
        "a copy by slot: exact, and at many tokens a few times as fast as an index copy",
        devices=CPU,
        lacks=_needs_any_native,
    ),
    Kernel(
        "write_kv", "index-copy", f"{REFERENCE}.kv_write:write_kv", "a copy by slot: exact in every mode", numerics=BOTH
    ),
    Kernel(
        "write_int8_kv",
        "native",
        f"{NATIVE}.kv_write:write_int8_kv",
        "kv_cache_dtype=int8: rounded on the way, one pass; the reference's bits",
        devices=CPU,
        lacks=_needs_any_native,
        levels=AVX2,
    ),
    Kernel(
        "write_int8_kv",
        "reference",
        f"{REFERENCE}.kv_write:write_kv",
        "kv_cache_dtype=int8: rounded by token and head, then a copy by slot",
        numerics=BOTH,
    ),
    _by_rows("rms_norm", "one pass, one call"),
    Kernel("rms_norm", "torch-cpu", f"{FAST}.elementwise:rms_norm", "few calls", devices=CPU),
    Kernel("rms_norm", "reference", f"{REFERENCE}.elementwise:rms_norm", "row by row in float32", numerics=BOTH),
    _by_rows("rope", "in place, one call"),
    Kernel("rope", "torch-cpu", f"{FAST}.elementwise:rope", "in place, three calls", devices=CPU),
    Kernel("rope", "reference", f"{REFERENCE}.elementwise:rope", "separate products and sum in float32", numerics=BOTH),
    _by_rows("gated", "one pass, one call"),
    Kernel("gated", "torch-cpu", f"{FAST}.elementwise:gated", "library activations", devices=CPU),
    Kernel(
        "gated",
        "reference",
        f"{REFERENCE}.elementwise:gated",
        "built on exp and tanh, whose bits do not depend on length",
        numerics=BOTH,
    ),
    _by_rows("largest", "one pass, one call; the reference's bits"),
    _by_rows("draw_bounds", "one pass over logits that are drawn from", module="draws"),
    _by_rows("draw_scale", "one pass; the reference's bits", module="draws"),
    _by_rows("keep_allowed", "a grammar's words as they come, one pass; the reference's bits", module="draws"),
    Kernel("largest", "reference", f"{REFERENCE}.largest:largest", "maxima of pieces, then of one", numerics=BOTH),
    Kernel("draw_bounds", "reference", f"{REFERENCE}.draws:draw_bounds", "passes over copies", numerics=BOTH),
    Kernel("draw_scale", "reference", f"{REFERENCE}.draws:draw_scale", "two passes", numerics=BOTH),
    Kernel("keep_allowed", "reference", f"{REFERENCE}.draws:keep_allowed", "words made a mask", numerics=BOTH),
)
OPS = tuple(dict.fromkeys(row.op for row in TABLE))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _judge(row: Kernel, device: str, dtype: torch.dtype, numerics: Numerics) -> str:
    """What the row lacks for this use; empty when it serves."""
    if device not in row.devices:
        return f"for {' and '.join(row.devices)}"
    if dtype not in row.dtypes:
        return f"for {', '.join(map(_short, row.dtypes))}"
    if numerics not in row.numerics:
        return "its bits may depend on the batch"
    return row.lacks(dtype)


def choose(op: str, device: str, dtype: torch.dtype, numerics: Numerics) -> Kernel:
    """The row that serves. Raises UnsupportedError when none does."""
    rows = [row for row in TABLE if row.op == op]
    for row in rows:
        if not _judge(row, device, dtype, numerics):
            return row
    lacking = "; ".join(f"{row.name}: {_judge(row, device, dtype, numerics)}" for row in rows)
    raise UnsupportedError(
        f"no kernel computes {op} on {device} in {_short(dtype)}",
        seen=lacking or f"op {op!r}",
        expected=f"one of {', '.join(OPS)} in {', '.join(map(_short, FLOATS))}",
        fix="choose dtype float32",
    )


def widens(device: str, dtype: torch.dtype, numerics: Numerics) -> bool:
    """Whether half precision is computed in float32 between products or in them, which takes memory for both."""
    if device != "cpu" or dtype == torch.float32:
        return False
    return not native_half(dtype) or choose("decoder", device, dtype, numerics).name == "native"


def pick(op: str, device: str | torch.device, dtype: torch.dtype, numerics: Numerics) -> Any:
    """The implementation of `op`: a callable, or for "linear" a class with pack and apply."""
    return choose(op, torch.device(device).type, dtype, numerics).load()


@dataclass(frozen=True)
class Explanation:
    """One line of `paceline doctor`."""

    op: str
    kernel: str
    reason: str
    passed_over: tuple[tuple[str, str], ...]  # (row above it, what it lacked)


def _reason(chosen: Kernel) -> str:
    return f"{chosen.why} (written for {', '.join(chosen.levels)})" if len(chosen.levels) > 1 else chosen.why


def explain(device: str | torch.device, dtype: torch.dtype, numerics: Numerics) -> list[Explanation]:
    """Which kernel serves each op, and why none of those above it does."""
    kind = torch.device(device).type
    lines = []
    for op in OPS:
        chosen = choose(op, kind, dtype, numerics)
        above = []
        for row in TABLE:
            if row is chosen:
                break
            if row.op == op:
                above.append((row.name, _judge(row, kind, dtype, numerics)))
        lines.append(Explanation(op, chosen.label, _reason(chosen), tuple(above)))
    return lines


@cache
def on_logits(op: str, device: str) -> Any:
    """`pick` for logits, which are float32: which kernel serves changes no token, so there is one for all numerics."""
    return pick(op, device, torch.float32, "fast")
