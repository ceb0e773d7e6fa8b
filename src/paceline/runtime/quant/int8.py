"""GGUF blocks that meet activations of 8 bits: the WeightMethod for `activation_dtype=int8`.

Weights are kept as `gguf` keeps them, written for another product: a row of activations is rounded to codes of 8 bits
in the groups of the weight, and codes are multiplied with codes (csrc/int8.h). Parts in a type that no kernel packs are
floats and meet floats.
"""

from __future__ import annotations

from paceline.runtime.kernels.cpu.blocks import NativeBlocks, NativeInt8Blocks
from paceline.runtime.quant.gguf import GgufBlocks


class Int8Activations(GgufBlocks):
    """The WeightMethod."""

    name = "gguf-int8"

    def __init__(self, kernel: type[NativeBlocks] = NativeInt8Blocks, *, rounds: bool = False) -> None:
        super().__init__(kernel, rounds=rounds)
