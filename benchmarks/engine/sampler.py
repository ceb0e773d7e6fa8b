"""Processor time of a draw per row, by kind of sampling. Logits are random, shaped like those of a small model.

    python benchmarks/engine/sampler.py [--vocab 49152] [--rows 1,64]

Compares with what a sorting sampler pays: softmax, full sort and cumulative sum of each row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from paceline.runtime.noise import choice_key, position_keys
from paceline.runtime.sampler import Draws, draw

KINDS = {
    "greedy": {"greedy": True},
    "temperature 1": {},
    "temperature 0.7, top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "temperature 1, top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.95": {"top_k": 50, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "typical_p 0.9": {"typical_p": 0.9},
}


def make_draws(num_rows: int, **fields: float) -> Draws:
    neutral = {"greedy": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    values = {**neutral, **fields}
    keys = np.asarray([choice_key(seed, 0) for seed in range(num_rows)], dtype=np.uint64)
    multiplier, offset = position_keys(keys, np.arange(num_rows))
    return Draws(
        greedy=np.full(num_rows, values["greedy"], bool),
        temperature=np.full(num_rows, values["temperature"], np.float32),
        top_k=np.full(num_rows, values["top_k"], np.int64),
        top_p=np.full(num_rows, values["top_p"]),
        min_p=np.full(num_rows, values["min_p"]),
        typical_p=np.full(num_rows, values["typical_p"]),
        multiplier=multiplier,
        offset=offset,
    )


def best_us(work: Callable[[], object], prepare: Callable[[], object], repeats: int) -> float:
    """Least processor microseconds of `work`."""
    times = []
    for _ in range(repeats):
        prepare()
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times) * 1e6


def sorting(logits: torch.Tensor) -> torch.Tensor:
    ordered, _ = torch.softmax(logits, dim=1).sort(dim=1, descending=True)
    return ordered.cumsum(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--rows", default="1,64")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'us per row, one thread':30}", *(f"{rows + ' rows':>10}" for rows in args.rows.split(",")))
    counts = [int(rows) for rows in args.rows.split(",")]
    for name, fields in KINDS.items():
        cells = []
        for num_rows in counts:
            logits = torch.randn(num_rows, args.vocab) * 2
            logits[:, :40] += torch.linspace(12, 6, 40)
            work = logits.clone()
            draws = make_draws(num_rows, **fields)
            us = best_us(lambda w=work, d=draws: draw(w, d), lambda w=work, x=logits: w.copy_(x), args.repeats)
            cells.append(us / num_rows)
        print(f"{name:30}", *(f"{us:10.0f}" for us in cells))
    cells = []
    for num_rows in counts:
        logits = torch.randn(num_rows, args.vocab)
        cells.append(best_us(lambda x=logits: sorting(x), lambda: None, args.repeats) / num_rows)
    print(f"{'(softmax, sort, cumsum)':30}", *(f"{us:10.0f}" for us in cells))


if __name__ == "__main__":
    main()
