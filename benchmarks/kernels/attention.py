"""Attention kernels over a paged cache, one layer of SmolLM2-135M's sizes: decode, shared prefixes, prompts, chunks.

    python benchmarks/kernels/attention.py --dtype float32 --threads 2

Prints the least milliseconds per call, the step's plan built beforehand, beside the plain way: gather each row and call
scaled_dot_product_attention on it. `plan` is the time to build the native kernel's plan, paid once per step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from tests.cpu.kernels.cases import Case, make_case

from paceline.runtime.kernels.cpu.attention import attention as native
from paceline.runtime.kernels.cpu.attention import plan_tiles
from paceline.runtime.kernels.reference.attention import attention as reference
from paceline.runtime.kernels.torch_cpu.attention import attention as torch_cpu

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


def gather_and_sdpa(case: Case) -> torch.Tensor:
    """The plain way: per row, gather its K and V and attend with the library's kernel."""
    params, size = case.params, case.cache.block_size
    out, at = [], 0
    tables = case.metadata.groups[0].block_tables.long()
    for row, (context, count) in enumerate(zip(case.metadata.context_lens, case.metadata.query_lens, strict=True)):
        length = context + count
        blocks = case.cache.kv.index_select(2, tables[row, : -(-length // size)])
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="per number")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    print(f"{options.dtype}, {options.threads} threads, 9 heads, 3 KV heads, head_dim 64, block size 16; least ms")
    heads = ("native", "plan", "torch-cpu", "gather+sdpa", "reference")
    print(f"{'step':40}" + "".join(f"{head:>13}" for head in heads) + "  torch-cpu / native")
    for name, (rows, shared) in STEPS.items():
        case = make_case(rows, heads=9, kv_heads=3, dim=64, shared=shared, dtype=dtype)
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
