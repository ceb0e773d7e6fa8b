"""What each technique of the core buys on this machine: one load per technique, with and without it, interleaved.

    batching   48 requests, 64 in, 8 to 128 out (log-uniform), 16 rows     static batches -> continuous
    prefix     24 requests sharing 512 tokens, 32 own, 8 out, at once      no cache -> cache -> cache + waiting for it
    chunk      8 rows decode while prompts of 1,024 arrive                 chunk 1,024 -> 256 -> 64

Ratios are of medians over `--rounds` interleaved rounds of fresh prompts in one process per setting's engine.
Usage: python benchmarks/serving/techniques.py [--rounds 3] [--only batching,prefix,chunk]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from paceline import LLM, SamplingParams
from paceline.contracts.slo import Timeline, percentile

Load = Callable[[LLM, np.random.Generator], dict[str, float]]
COMMON = {"dtype": "float32", "max_model_len": 2048, "max_num_batched_tokens": 1088, "min_prefill_tokens": 16}


def prompt(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(1000, 40_000, size=count).tolist()


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def batching(llm: LLM, rng: np.random.Generator) -> dict[str, float]:
    lengths = np.exp(rng.uniform(np.log(8), np.log(128), size=48)).astype(int)
    began = time.perf_counter()
    results = llm.generate([prompt(rng, 64) for _ in lengths], [greedy(int(n)) for n in lengths])
    seconds = time.perf_counter() - began
    ttft = [r.outputs[0].timeline.ttft_s for r in results]
    return {"seconds": seconds, "TTFT p50 s": percentile(ttft, 0.5)}


def prefix(llm: LLM, rng: np.random.Generator) -> dict[str, float]:
    shared = prompt(rng, 512)
    began = time.perf_counter()
    llm.generate([shared + prompt(rng, 32) for _ in range(24)], greedy(8))
    return {"seconds": time.perf_counter() - began}


def chunk(llm: LLM, rng: np.random.Generator) -> dict[str, float]:
    """Eight streams decode; a long prompt is submitted whenever the one before has its first token, five in all."""
    decoding = [llm.prepare(prompt(rng, 32), greedy(160))[0] for _ in range(8)]
    for request in decoding:
        llm.client.submit(request)
    lines: dict[int, Timeline] = {}
    started: set[int] = set()
    long_ids: list[int] = []
    open_ids = {r.request_id for r in decoding}
    while open_ids:
        ready = len(started & {r.request_id for r in decoding}) == 8
        if ready and len(long_ids) < 5 and (not long_ids or long_ids[-1] in started):
            request = llm.prepare(prompt(rng, 1024), greedy(2))[0]
            llm.client.submit(request)
            long_ids.append(request.request_id)
            open_ids.add(request.request_id)
        for output in llm.client.outputs(timeout_s=0.0):
            started.add(output.request_id)
            if output.finish is not None:
                assert output.timeline is not None
                lines[output.request_id] = output.timeline
                open_ids.discard(output.request_id)
    gaps = [gap for r in decoding for gap in lines[r.request_id].itl_s()]
    return {"ITL max s": max(gaps), "TTFT p50 s": percentile([lines[i].ttft_s for i in long_ids], 0.5)}


TECHNIQUES: dict[str, tuple[Load, dict[str, dict[str, object]]]] = {
    "batching": (
        batching,
        {"static": {"batching": "static", "max_num_seqs": 16}, "continuous": {"max_num_seqs": 16}},
    ),
    "prefix": (
        prefix,
        {
            "no cache": {"enable_prefix_caching": False, "wait_for_prefix": False, "max_num_seqs": 32},
            "cache": {"wait_for_prefix": False, "max_num_seqs": 32},
            "cache + wait": {"max_num_seqs": 32},
        },
    ),
    "chunk": (
        chunk,
        {str(size): {"prefill_chunk_tokens": size, "max_num_seqs": 16} for size in (1024, 256, 64)},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(TECHNIQUES))
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    for name in args.only.split(","):
        load, settings = TECHNIQUES[name]
        engines = {}
        for label, options in settings.items():
            engines[label] = LLM(args.model, num_threads=args.threads, **COMMON, **options)
            engines[label].generate([prompt(rng, 64)], greedy(2))
        seen: dict[str, list[dict[str, float]]] = {label: [] for label in engines}
        for _ in range(args.rounds):
            for label, llm in engines.items():
                seen[label].append(load(llm, rng))
        base = next(iter(settings))
        for label, rounds in seen.items():
            parts = []
            for metric in rounds[0]:
                value = statistics.median(r[metric] for r in rounds)
                reference = statistics.median(r[metric] for r in seen[base])
                parts.append(f"{metric} {value:7.3f} ({value / reference:.2f} of {base})")
            print(f"{name:9s} {label:13s} " + "   ".join(parts), flush=True)
        for llm in engines.values():
            llm.close()


if __name__ == "__main__":
    main()
