"""Weights that meet activations of bfloat16: the WeightMethod for `activation_dtype=bfloat16`.

Blocks are kept as `gguf` keeps them, written for another product: they widen to bfloat16 on their way to it, and a row
of activations is rounded once for all outputs (csrc/bf16.h). Parts that come as floats are rounded once, while loading,
so every matrix of a model is reached. Everything between two products stays float32.
"""

from __future__ import annotations

from paceline.runtime.kernels.cpu.blocks import NativeBf16Blocks, NativeBlocks
from paceline.runtime.quant.gguf import GgufBlocks


class Bf16Activations(GgufBlocks):
    """The WeightMethod."""

    name = "gguf-bf16"

    def __init__(
        self, kernel: type[NativeBlocks] = NativeBf16Blocks, *, rounds: bool = False, keeps: bool = True
    ) -> None:
        super().__init__(kernel, rounds=rounds, keeps=keeps)
