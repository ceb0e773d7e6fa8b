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


_NEEDS = {"gguf_linear": "AVX2", "gguf_int8_linear": "AVX2", "gguf_bf16_linear": "AVX-512 BF16 or AMX"}
_DTYPES = {
    "gguf_linear": "dtype float32 or bfloat16",
    "gguf_int8_linear": "dtype float32 or bfloat16",
    "gguf_bf16_linear": "dtype float32",
}
_OPS = {"float": "gguf_linear", "int8": "gguf_int8_linear", "bfloat16": "gguf_bf16_linear"}


def find_weight_method(config: EngineConfig, files: hub.ModelFiles, *, device: str, dtype: str) -> GgufBlocks | None:
    """None: as floats. Raises UnsupportedError where what was asked for by name cannot be had."""
    from paceline.runtime.device import DTYPES
    from paceline.runtime.kernels.dispatch import choose

    quantization, activations = config.model.quantization, config.model.activation_dtype
    rounds = quantization == "int8"
    if activations == "int8" and quantization == "none":
        raise UnsupportedError(
            "activations of 8 bits are for weights that stay quantised",
            seen="activation_dtype=int8, quantization=none",
            fix="leave quantization at auto, or set it to int8",
        )
    op = _OPS[activations]
    asked = "quantization=int8" if activations == "float" else f"activation_dtype={activations}"
    if activations != "float" or rounds:
        _check_serves(op, asked, config, device, dtype)
    if activations == "int8" or rounds:
        _check_reaches(asked, files, rounds=rounds)
    from paceline.runtime.quant.bf16 import Bf16Activations
    from paceline.runtime.quant.gguf import GgufBlocks
    from paceline.runtime.quant.int8 import Int8Activations

    serves = choose(op, device, DTYPES[dtype], config.numerics)
    if activations == "bfloat16":  # of floats too
        return Bf16Activations(serves.load(), rounds=rounds, keeps=quantization != "none")
    kept = rounds or (quantization == "auto" and files.kind == "gguf")
    if not kept or serves.name == "none":
        return None
    return (Int8Activations if activations == "int8" else GgufBlocks)(serves.load(), rounds=rounds)


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
        expected=f"a CPU with {_NEEDS[op]}, the native library, {_DTYPES[op]} and numerics=fast",
        fix="`paceline doctor` shows what serves; without the option weights are kept as it serves best",
    )


def _check_reaches(asked: str, files: hub.ModelFiles, *, rounds: bool) -> None:
    """Raise UnsupportedError when what was asked for would leave every product as it is.

    It reaches matrices in blocks that a kernel takes and, where floats are rounded, those of whole groups."""
    from paceline.hub.ggml_types import GGML_TYPES
    from paceline.runtime.kernels.cpu.blocks import LAYOUTS
    from paceline.runtime.quant.rounded import GROUP

    taken = {GGML_TYPES[number].name for number in LAYOUTS}
    matrices = _multiplied(files)
    if any(stored in taken or (rounds and num_inputs % GROUP == 0) for stored, num_inputs in matrices):
        return
    blocks = f"a GGUF file with multiplied weights in {', '.join(sorted(taken))}"
    stored = ", ".join(sorted({kind for kind, _ in matrices}))
    inputs = ", ".join(sorted({str(num_inputs) for _, num_inputs in matrices}))
    raise UnsupportedError(
        f"{asked} would change nothing: no kernel takes any weight of this model that is multiplied",
        seen=f"{files.path}: weights in {stored}, of {inputs} inputs",
        expected=f"{blocks}, or inputs in multiples of {GROUP}" if rounds else blocks,
        fix="leave the option out, or choose another model"
        if rounds
        else "choose such a file, or add quantization=int8: the model's weights are then rounded to 8 bits",
    )


def _multiplied(files: hub.ModelFiles) -> list[tuple[str, int]]:
    """How each matrix of a product is stored (the GGUF type's name, or "floats"), and its number of inputs. A table
    that rows are only gathered from is none."""
    if files.kind == "gguf":
        tensors = hub.GGUFFile(files.path).tensors
        table = "token_embd.weight" if "output.weight" in tensors else None
        return [(t.type.name, t.shape[1]) for t in tensors.values() if len(t.shape) == 2 and t.name != table]
    from paceline.runtime.loader.dummy import weight_shapes

    spec = hub.describe(files)
    table = None if spec.tie_word_embeddings else "model.embed_tokens.weight"
    return [("floats", shape[1]) for name, shape in weight_shapes(spec) if len(shape) == 2 and name != table]
