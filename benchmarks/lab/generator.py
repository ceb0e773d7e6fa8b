"""Capacity of the load generator: streamed requests/s it keeps on time against a server that takes no time.

Both run on this machine, the null server as one process. Each rate is offered for some seconds, evenly; a rate holds
when achieved is within 1 % of offered, every request ended well and the 99th percentile of the schedule lag is at most
5 ms. `--tpot-ms` spaces the tokens, so that each is a read of its own (with 0 a whole answer comes in one or two).
CPU is that of the load processes' event loops.

    python benchmarks/lab/generator.py [--rates 500 1000 1500] [--tokens 8] [--seconds 4] [--processes N] [--tpot-ms 0]
"""

from __future__ import annotations

import argparse
import os

from paceline.lab.load import LoadOptions
from paceline.lab.load.calibrate import Calibration, null_server, null_target, offer

GOAL_RPS, GOAL_LAG_MS = 1500.0, 5.0


def holds(found: Calibration) -> bool:
    return found.holds and found.lag_p99_ms <= GOAL_LAG_MS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[500, 1000, 1500, 2000, 3000])
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--prompt-words", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0, help="each rate is offered for so long")
    parser.add_argument("--processes", type=int, default=None, help="load processes; default: as the rate asks")
    parser.add_argument("--tpot-ms", type=float, default=0.0)
    options = parser.parse_args()
    load_options = LoadOptions(num_processes=options.processes)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before; {options.tokens} tokens per answer")
    print(f"{'offered/s':>9} {'achieved/s':>10} {'lag p50':>8} {'lag p99':>8} {'lag max':>8}  ms", end="")
    print(f" {'loop p99':>9} {'CPU':>5} {'us/chunk':>8} {'procs':>5} {'conns':>5} {'failed':>6}  holds")
    best = 0.0
    with null_server(tpot_ms=options.tpot_ms) as url:
        target = null_target(url)
        offer(target, 100, 0.5, options.tokens, options.prompt_words, load_options)  # warm both sides
        for rate in options.rates:
            found = offer(target, rate, options.seconds, options.tokens, options.prompt_words, load_options)
            health = found.health
            print(
                f"{rate:9.0f} {found.rps:10.1f} {health.lag_p50_ms:8.3f} {health.lag_p99_ms:8.3f}"
                f" {health.lag_max_ms:8.3f}     {health.loop_lag_p99_ms:9.2f} {health.cpu_share_max:5.2f}"
                f" {health.cpu_us_per_chunk:8.1f} {health.num_processes:5d} {health.connections_peak:5d}"
                f" {found.num_failed:6d}  {'yes' if holds(found) else 'no'}",
                flush=True,
            )
            best = max(best, rate if holds(found) else 0.0)
    print(f"highest rate that holds: {best:.0f}/s (goal {GOAL_RPS:.0f}/s at p99 lag <= {GOAL_LAG_MS:g} ms)")


if __name__ == "__main__":
    main()
