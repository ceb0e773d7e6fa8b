"""The weight products of one step, native beside oneDNN and plain BLAS, and how fast weights can be read at all.

Shapes are SmolLM2-135M's: 30 layers and the output head. Rounds are interleaved; the fastest of each is compared,
because whatever disturbs a round only makes it slower. The limit is reading the weights' bytes, in the same run.
"blocks" are the types of the packaged GGUF file (or others: --types), multiplied as they are stored;
"int8" are the same with activations rounded to 8 bits (activation_dtype=int8), the rounding included; "rows" with
activations and widened weights of bfloat16 (activation_dtype=bfloat16); "rows-bf16" that product with weights that came
as floats; "torch-bf16" torch's own on weights and activations of bfloat16.

A step needs the output head for the tokens that are sampled alone: --head-rows says for how many rows at most.

Usage: python benchmarks/kernels/linear.py [--rows 1,8,64,512] [--rounds 8] [--threads 2] [--only int8,blocks]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.hub.ggml_types import GGML_TYPES
from paceline.runtime.kernels.cpu import native
from paceline.runtime.kernels.cpu.blocks import NativeBf16Blocks, NativeBlocks, NativeInt8Blocks
from paceline.runtime.kernels.cpu.linear import NativeLinear
from paceline.runtime.kernels.torch_cpu.linear import PackedLinear, PlainLinear

LAYER = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
NUM_LAYERS, HEAD = 30, (49152, 576)
TYPES = "Q4_1,Q8_0"  # of layers and head, as the packaged file has them


class TorchBFloat16:
    """torch's product on a weight of bfloat16, as a model in dtype=bfloat16 runs it."""

    @staticmethod
    def apply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x.bfloat16(), weight, bias)


def best_ms(run: Callable[[], object], rounds: int) -> float:
    fastest = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        fastest = min(fastest, (time.perf_counter() - begun) * 1e3)
    return fastest


def in_blocks(shape: tuple[int, int], kind: str, kernel: type[NativeBlocks]) -> Any:
    """Packed blocks of random codes: their values do not matter here, their bytes do."""
    number, block = next((n, t) for n, t in GGML_TYPES.items() if t.name == kind)
    count = shape[0] * shape[1] // block.block_size
    raw = np.random.default_rng(0).integers(0, 256, (count, block.block_bytes), dtype=np.uint8)
    raw[:, :4] = np.array([0.01, 0.0], dtype=np.float16).view(np.uint8)  # finite scales
    return kernel.pack(raw.reshape(-1), number, *shape)


def step_in_blocks(kernel: type[NativeBlocks], types: str) -> tuple[Any, list[Any]]:
    layer_type, head_type = types.split(",")
    layers = [in_blocks(shape, layer_type, kernel) for shape in LAYER * NUM_LAYERS]
    return kernel, [*layers, in_blocks(HEAD, head_type, kernel)]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,4,8,16,64,256,512")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="int8,blocks,f32,bf16,onednn,blas", help="kernels to time")
    parser.add_argument("--types", default=TYPES, help="GGUF types of layers and head: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0")
    parser.add_argument("--head-rows", type=int, default=None, help="rows that meet the output head, all if not given")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if native.why_not():
        raise SystemExit(native.why_not())

    weights = [torch.randn(shape) for shape in [*LAYER * NUM_LAYERS, HEAD]]
    numbers = sum(w.numel() for w in weights)
    known: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
        "int8": lambda: step_in_blocks(NativeInt8Blocks, args.types),
        "blocks": lambda: step_in_blocks(NativeBlocks, args.types),
        "rows": lambda: step_in_blocks(NativeBf16Blocks, args.types),
        "rows-bf16": lambda: (NativeBf16Blocks, [NativeBf16Blocks.pack_floats(w) for w in weights]),
        "torch-bf16": lambda: (TorchBFloat16, [w.bfloat16() for w in weights]),
        "f32": lambda: (NativeLinear, [NativeLinear.pack(w) for w in weights]),
        "bf16": lambda: (NativeLinear, [NativeLinear.pack(w.bfloat16()) for w in weights]),
        "onednn": lambda: (PackedLinear, [PackedLinear.pack(w) for w in weights]),
        "blas": lambda: (PlainLinear, weights),
    }
    kernels = {name: known[name]() for name in args.only.split(",")}
    first = next(iter(kernels))
    whole = torch.cat([w.flatten() for w in weights])
    read_ms = best_ms(whole.sum, args.rounds)
    rate = numbers * 4 / read_ms / 1e6
    print(f"{args.threads} threads; reading {numbers * 4 / 1e6:.0f} MB takes {read_ms:.1f} ms ({rate:.1f} GB/s)")
    others = "".join(f"  {name + ' / ' + first:>14s}" for name in kernels if name != first)
    print(f"{'rows':>5s}  " + "  ".join(f"{name:>20s}" for name in kernels) + others)
    for rows in map(int, args.rows.split(",")):
        by_size = {size: torch.randn(rows, size) for size in (576, 1536)}
        inputs = [by_size[weight.shape[1]] for weight in weights]
        inputs[-1] = inputs[-1][: args.head_rows]
        products = sum(x.shape[0] * weight.numel() for x, weight in zip(inputs, weights, strict=True))

        def step(kernel: Any, packed: list[Any], inputs: list[torch.Tensor] = inputs) -> None:
            for x, form in zip(inputs, packed, strict=True):
                kernel.apply(x, form, None)

        ms = dict.fromkeys(kernels, float("inf"))
        for _ in range(args.rounds if rows <= 64 else 3):
            for name, (kernel, packed) in kernels.items():
                ms[name] = min(ms[name], best_ms(lambda k=kernel, p=packed: step(k, p), 1))  # type: ignore[misc]
        cells = "  ".join(f"{v:7.1f} ms {2 * products / v / 1e6:5.0f} G/s" for v in ms.values())
        ratios = "".join(f"  {v / ms[first]:14.2f}" for name, v in ms.items() if name != first)
        print(f"{rows:5d}  {cells}{ratios}", flush=True)


if __name__ == "__main__":
    main()
