"""Attention kernels over a paged cache, one layer of SmolLM2-135M's sizes: decode, shared prefixes, prompts, chunks.

    python benchmarks/kernels/attention.py --dtype float32 --threads 2
    python benchmarks/kernels/attention.py --caches
    python benchmarks/kernels/attention.py --tiles

Prints the least milliseconds per call, the step's plan built beforehand, beside the plain way: gather each row and call
scaled_dot_product_attention on it. `plan` is the time to build the native kernel's plan, paid once per step.

`--caches`: the native kernel alone, queries of float32 over caches of float32, bfloat16 and int8 in turn, and how many
sequences of a model of these sizes a GiB of each holds. A step's whole cache is one layer's: where it fits the
processor's last cache it stays there, which the layers of a model do not.

`--tiles`: the native kernel over a cache of bfloat16, in registers (avx512) and in tiles (amx) in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from tests.cpu.kernels.cases import Case, make_case

from paceline.contracts.kv import KV_FORMATS
from paceline.runtime.kernels.cpu.attention import attention as native
from paceline.runtime.kernels.cpu.attention import plan_tiles
from paceline.runtime.kernels.cpu.kv_write import write_int8_kv, write_kv
from paceline.runtime.kernels.cpu.native import isa_levels, set_isa
from paceline.runtime.kernels.reference.attention import attention as reference
from paceline.runtime.kernels.torch_cpu.attention import attention as torch_cpu
from paceline.runtime.kv_cache import CHUNK_BLOCKS

STEPS: dict[str, tuple[list[tuple[int, int]], int]] = {
    "decode 1 x 256": ([(256, 1)], 0),
    "decode 8 x 256": ([(256, 1)] * 8, 0),
    "decode 64 x 300": ([(300, 1)] * 64, 0),
    "decode 64 x 16..1024": ([(16 * (i + 1), 1) for i in range(64)], 0),
    "decode 256 x 256": ([(256, 1)] * 256, 0),
    "decode 32 x (1024 shared + 64)": ([(1088, 1)] * 32, 1024),
    "prompt 512": ([(0, 512)], 0),
    "prompt 2048": ([(0, 2048)], 0),
    "chunk 512 after 1536": ([(1536, 512)], 0),
    "mixed: 32 decode + chunk 256 after 256": ([(256, 1)] * 32 + [(256, 256)], 0),
}

LONGER: dict[str, tuple[list[tuple[int, int]], int]] = {
    "decode 1 x 8192": ([(8191, 1)], 0),
    "decode 64 x 2048": ([(2047, 1)] * 64, 0),
    "chunk 256 after 7936": ([(7936, 256)], 0),
}
SIZES = {"heads": 9, "kv_heads": 3, "dim": 64}


def gather_and_sdpa(case: Case) -> torch.Tensor:
    """The plain way: per row, gather its K and V and attend with the library's kernel."""
    params, size = case.params, case.cache.block_size
    out, at = [], 0
    tables = case.metadata.groups[0].block_tables.long()
    for row, (context, count) in enumerate(zip(case.metadata.context_lens, case.metadata.query_lens, strict=True)):
        length = context + count
        ids = tables[row, : -(-length // size)]
        blocks = case.cache.kv[:, :, ids // CHUNK_BLOCKS, ids % CHUNK_BLOCKS]
        k, v = blocks.flatten(2, 3)[:, :, :length]
        q = case.q[at : at + count].transpose(0, 1)
        mask = None
        if count > 1 and context:
            mask = torch.ones(count, length, dtype=torch.bool).tril(context)
        causal = bool(count > 1 and not context)
        attended = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, is_causal=causal, scale=params.scale, enable_gqa=True
        )
        out.append(attended[0].transpose(0, 1).reshape(count, -1))
        at += count
    return torch.cat(out)


def least_ms(call: Callable[[], object], seconds: float) -> float:
    call()
    least, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least * 1e3


def compare_caches(seconds: float) -> None:
    """Rounds go in turn, so that a drift of the machine meets all."""
    kinds = (torch.float32, torch.bfloat16, torch.int8)
    names = [str(kind).removeprefix("torch.") for kind in kinds]
    columns = f"{'step':40}{'int8 MiB':>9}" + "".join(f"{name:>12}" for name in names)
    print(f"{columns}  float32 / int8  bfloat16 / int8")
    for name, (rows, shared) in (STEPS | LONGER).items():
        calls, size = [], 0.0
        for kind in kinds:
            case = make_case(rows, **SIZES, shared=shared, kv_dtype=kind)
            calls.append(partial(native, case.q, case.kv, case.cache, case.fresh(), case.params))
            size = case.cache.kv.nbytes / 2**20
        with torch.inference_mode():
            least = [min(times) for times in zip(*(least_each(calls, seconds / 4) for _ in range(4)), strict=True)]
        ratios = f"{least[0] / least[2]:16.2f}{least[1] / least[2]:17.2f}"
        print(f"{name:40}{size:9.1f}" + "".join(f"{ms:12.3f}" for ms in least) + ratios, flush=True)
    tokens = 600
    kv = torch.randn(tokens, 6, 64)
    written = []
    for kind, write in ((torch.float32, write_kv), (torch.int8, write_int8_kv)):
        case = make_case([(0, tokens)], **SIZES, kv_dtype=kind)
        slots = case.metadata.groups[0].slot_mapping
        written.append(least_ms(partial(write, kv, case.cache, slots), seconds / 2))
    print(f"write {tokens} tokens: float32 {written[0]:.3f} ms, int8 {written[1]:.3f} ms")
    for kind, held in KV_FORMATS.items():
        per_token = 30 * 2 * 3 * (64 * held.element_bytes + held.scale_bytes)
        print(f"{kind}: {per_token} bytes a token in 30 layers, {2**30 // (2048 * per_token)} x 2048 tokens in a GiB")


def compare_levels(seconds: float) -> None:
    """Rounds go in turn, so that a drift of the machine meets both."""
    levels = ("avx512", "amx")
    if missing := set(levels) - set(isa_levels()):
        raise SystemExit(f"this machine lacks {', '.join(sorted(missing))}: nothing to compare")
    print(f"{'step':40}" + "".join(f"{level:>12}" for level in levels) + "  avx512 / amx")
    for name, (rows, shared) in (STEPS | LONGER).items():
        case = make_case(rows, **SIZES, shared=shared, kv_dtype=torch.bfloat16)
        calls = []
        for level in levels:  # the step's plan says which kernel takes it
            set_isa(level)
            calls.append(partial(native, case.q, case.kv, case.cache, case.fresh(), case.params))
            calls[-1]()
        with torch.inference_mode():
            least = [min(times) for times in zip(*(least_each(calls, seconds / 8) for _ in range(4)), strict=True)]
        print(f"{name:40}" + "".join(f"{ms:12.3f}" for ms in least) + f"{least[0] / least[1]:14.2f}", flush=True)


def least_each(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    return [least_ms(call, seconds) for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="per number")
    parser.add_argument("--caches", action="store_true", help="compare types of the KV cache instead of kernels")
    parser.add_argument("--tiles", action="store_true", help="compare attention in registers and in AMX tiles")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.tiles:
        compare_levels(options.seconds)
        return
    if options.caches:
        compare_caches(options.seconds)
        return
    dtype = getattr(torch, options.dtype)
    print(f"{options.dtype}, {options.threads} threads, 9 heads, 3 KV heads, head_dim 64, block size 16; least ms")
    heads = ("native", "plan", "torch-cpu", "gather+sdpa", "reference")
    print(f"{'step':40}" + "".join(f"{head:>13}" for head in heads) + "  torch-cpu / native")
    for name, (rows, shared) in STEPS.items():
        case = make_case(rows, **SIZES, shared=shared, dtype=dtype)
        calls = (
            (partial(native, case.q, case.kv, case.cache, case.fresh(), case.params), options.seconds),
            (partial(plan_tiles, case.metadata, case.cache, case.params), options.seconds / 4),
            (partial(torch_cpu, case.q, case.kv, case.cache, case.fresh(), case.params), options.seconds),
            (partial(gather_and_sdpa, case), options.seconds),
            (partial(reference, case.q, case.kv, case.cache, case.fresh(), case.params), options.seconds),
        )
        with torch.inference_mode():
            times = [least_ms(call, seconds) for call, seconds in calls]
        print(f"{name:40}" + "".join(f"{ms:13.3f}" for ms in times) + f"{times[2] / times[0]:10.2f}", flush=True)


if __name__ == "__main__":
    main()
