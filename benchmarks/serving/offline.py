"""Offline speed of `LLM.generate` against transformers' `generate`, in one process and one run.

Both run the same weights (the packaged SmolLM2-135M) in the same dtype, on the same token ids, greedy, end of sequence
ignored, with the same number of threads. transformers runs eager with sdpa attention, left-padded, in batches of at
most 64. Rounds are interleaved, each on prompts not seen before, so that neither a warm prefix cache nor a drift of the
machine favours one side.

    single   1 request, 128 in, 128 out            one stream
    batch    64 requests, 256 in, 128 out          at once
    prefix   32 requests, 1,024 shared + 64 own in, 32 out, the prefix never seen before

Usage: python benchmarks/serving/offline.py [--rounds 3] [--workloads single,batch,prefix] [--dtype bfloat16]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from paceline import LLM, SamplingParams

GOALS = {"single": 1.5, "batch": 2.0, "prefix": 4.0}
Generate = Callable[[list[list[int]], int], list[list[int]]]


def workload(name: str, rng: np.random.Generator, vocab: int) -> tuple[list[list[int]], int]:
    def ids(count: int) -> list[int]:
        return rng.integers(1000, vocab, size=count).tolist()

    if name == "single":
        return [ids(128)], 128
    if name == "batch":
        return [ids(256) for _ in range(64)], 128
    shared = ids(1024)
    return [shared + ids(64) for _ in range(32)], 32


def paceline_generate(llm: LLM) -> Generate:
    def generate(prompts: list[list[int]], num_out: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=num_out, ignore_eos=True)
        return [list(r.outputs[0].token_ids) for r in llm.generate(prompts, params)]

    return generate


def transformers_generate(gguf: Path, dtype: torch.dtype, max_batch: int = 64) -> Generate:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=dtype, attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = None
    pad = 2

    @torch.inference_mode()
    def generate(prompts: list[list[int]], num_out: int) -> list[list[int]]:
        out: list[list[int]] = []
        for at in range(0, len(prompts), max_batch):
            batch = prompts[at : at + max_batch]
            longest = max(map(len, batch))
            tokens = torch.tensor([[pad] * (longest - len(p)) + p for p in batch])
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in batch])
            result = model.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=num_out,
                min_new_tokens=num_out,
                do_sample=False,
                pad_token_id=pad,
            )
            out += [row[longest:].tolist() for row in result]
        return out

    return generate


def timed(generate: Generate, prompts: list[list[int]], num_out: int) -> float:
    start = time.perf_counter()
    outputs = generate(prompts, num_out)
    seconds = time.perf_counter() - start
    lengths = {len(o) for o in outputs}
    if lengths != {num_out} or len(outputs) != len(prompts):
        raise SystemExit(f"wrong output lengths {lengths}, expected {num_out}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=1, help="in turns; several give the ratio a spread")
    parser.add_argument("--workloads", default="single,batch,prefix")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    llm = LLM(args.model, dtype=args.dtype, profile="batch", max_num_seqs=64, num_threads=args.threads)
    peers = {
        "paceline": paceline_generate(llm),
        "transformers": transformers_generate(Path(llm.model_path), getattr(torch, args.dtype)),
    }
    rng = np.random.default_rng(args.seed)
    print(f"{args.threads} threads, {args.dtype}, {args.rounds} rounds interleaved; output tokens over the whole time")
    for name in args.workloads.split(","):
        seconds: dict[str, list[float]] = {peer: [] for peer in peers}
        for generate in peers.values():  # first calls allocate and compile; not counted
            warm, _ = workload("single", rng, llm.vocab_size)
            generate(warm, 4)
        for _ in range(args.rounds):
            prompts, num_out = workload(name, rng, llm.vocab_size)
            for peer, generate in peers.items():
                seconds[peer].append(timed(generate, prompts, num_out))
        total = len(prompts) * num_out
        ours, theirs = (statistics.median(seconds[p]) for p in ("paceline", "transformers"))
        pairs = [t / o for o, t in zip(seconds["paceline"], seconds["transformers"], strict=True)]
        print(
            f"{name:7s} paceline {ours:7.2f} s ({total / ours:6.1f} tok/s)  transformers {theirs:7.2f} s "
            f"({total / theirs:6.1f} tok/s)  ratio {statistics.median(pairs):.2f}x "
            f"[{min(pairs):.2f}-{max(pairs):.2f}], goal {GOALS[name]}x"
        )
        print(json.dumps({"workload": name, "seconds": seconds, "ratio": statistics.median(pairs)}))
    llm.close()


if __name__ == "__main__":
    main()
