"""How a model's weights are kept and what they are multiplied with: what was asked, what the file has, what serves.

Imports torch only when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline import hub
from paceline.config import EngineConfig
from paceline.errors import UnsupportedError

if TYPE_CHECKING:
    from paceline.runtime.quant.gguf import GgufBlocks


def find_weight_method(config: EngineConfig, files: hub.ModelFiles, *, device: str, dtype: str) -> GgufBlocks | None:
    """None: as floats. Raises UnsupportedError where what was asked for by name cannot be had."""
    from paceline.runtime.device import DTYPES
    from paceline.runtime.kernels.dispatch import choose

    quantization, int8 = config.model.quantization, config.model.activation_dtype == "int8"
    if int8 and quantization == "none":
        raise UnsupportedError(
            "activations of 8 bits are for weights that stay quantised",
            seen="activation_dtype=int8, quantization=none",
            fix="leave quantization at auto, or set it to int8",
        )
    kept = quantization == "int8" or (quantization == "auto" and files.kind == "gguf")
    if int8:
        _check_serves("gguf_int8_linear", "activation_dtype=int8", config, device, dtype)
        if not kept or (quantization == "auto" and not _has_blocks(files)):
            raise UnsupportedError(
                "activations of 8 bits need quantised weights, and this model has none that a kernel takes",
                seen=str(files.path),
                expected=f"a GGUF file with weights in {', '.join(sorted(_names()))}",
                fix="choose such a file, or add quantization=int8: the model's weights are then rounded to 8 bits",
            )
    elif quantization == "int8":
        _check_serves("gguf_linear", "quantization=int8", config, device, dtype)
    op = "gguf_int8_linear" if int8 else "gguf_linear"
    if not kept or choose(op, device, DTYPES[dtype], config.numerics).name == "none":
        return None
    from paceline.runtime.quant.gguf import GgufBlocks
    from paceline.runtime.quant.int8 import Int8Activations

    return (Int8Activations if int8 else GgufBlocks)(rounds=quantization == "int8")


def _check_serves(op: str, asked: str, config: EngineConfig, device: str, dtype: str) -> None:
    """Raise UnsupportedError with the reasons of the kernel table when no kernel does it."""
    from paceline.runtime.device import DTYPES
    from paceline.runtime.kernels.dispatch import explain

    line = next(line for line in explain(device, DTYPES[dtype], config.numerics) if line.op == op)
    if line.kernel != "none":
        return
    reasons = "; ".join(f"{name} lacks: {reason}" for name, reason in line.passed_over)
    raise UnsupportedError(
        f"{asked} has no kernel here",
        seen=f"{reasons} (device {device}, dtype {dtype}, numerics {config.numerics})",
        expected="a CPU with AVX2, the native library, dtype=float32 and numerics=fast",
        fix="`paceline doctor` shows what serves; without the option weights are kept as it serves best",
    )


def _names() -> set[str]:
    """Types of GGUF blocks that kernels take."""
    from paceline.hub.ggml_types import GGML_TYPES
    from paceline.runtime.kernels.cpu.blocks import LAYOUTS

    return {GGML_TYPES[number].name for number in LAYOUTS}


def _has_blocks(files: hub.ModelFiles) -> bool:
    from paceline.hub.gguf_file import GGUFFile

    taken = _names()
    return any(info.type.name in taken and len(info.shape) == 2 for info in GGUFFile(files.path).tensors.values())
