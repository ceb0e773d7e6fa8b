"""How well prices fitted to some sizes of step predict others: `python benchmarks/cost/held_out.py [--cpu-time]`.

Calibrates a model as `paceline calibrate` does, in one attempt, and prints each size with its prediction. Nothing is
saved.
With `--cpu-time`, on one thread, steps are timed by the seconds of the processor: what other programs take then counts
only as far as it empties the caches, so that the fit can be judged on a machine that is not idle.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace

from rich.console import Console

from paceline.assemble import calibrate
from paceline.assemble.core import build_core
from paceline.cli.calibrate import print_cells, print_summary
from paceline.config import load_config, prepare_process
from paceline.runtime import executor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    prepare_process()
    flags = {
        "model": options.model,
        "max_num_seqs": options.rows,
        "max_num_batched_tokens": options.rows + options.chunk,
        "prefill_chunk_tokens": options.chunk,
    }
    if options.cpu_time:
        flags["num_threads"] = 1
        executor.time = SimpleNamespace(perf_counter=time.process_time)  # the clock its steps are timed by
    built = build_core(load_config(flags=flags))
    try:
        found = calibrate.calibrate_core(built, rounds=options.rounds, attempts=1)
    finally:
        built.core.close()
    console = Console(width=120)
    print_cells(console, found)
    print_summary(console, found)


if __name__ == "__main__":
    main()
