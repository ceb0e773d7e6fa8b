"""paceline beside llama.cpp, OpenVINO GenAI and vLLM on this machine: the same token ids, in turns, in one run.

    make bench-peers [PEERS=folder]                                     sets up what is missing, then runs it all
    PYTHONPATH=. python -m benchmarks.peers.engines.run --peers DIR [--quick] [--parts loads online quality]

    W1  one stream, 128 in, 128 out: decoded tokens/s (a run of 128 tokens less one of a single token)
    W2  one prompt of 2,048: tokens/s to the first token
    W3  64 prompts of 256 at once, 128 out: output tokens/s, and the most memory meanwhile
    W4  32 prompts sharing 1,024 tokens that nobody has seen, 64 own, 32 out: seconds
    W5  a server under Poisson arrivals, 64 to 1,024 in and 16 to 256 out: the share with TTFT within 1 s and TPOT
        within 50 ms, and the highest rate at which it is 90 %; steps hold 256 tokens at most where there is a limit
    quality  KL to float32 of llama.cpp's arithmetic and ours on the same file and positions

Greedy, ends of sequence ignored. Each load is measured in rounds in which every engine has its turn, A B C C B A; an
engine that waits stands still. Ratios are of rounds, their median and extremes. The limits beside them are measured in
the same run (limits.py) and computed in roofline.py. Results are lines of JSON in PEERS/results; the same command goes
on where it ended. Nothing else may run meanwhile; the load average before is printed and kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.peers.engines.columns import ROOT, Machine, columns
from benchmarks.peers.engines.comparison import REQUESTS, Comparison
from benchmarks.peers.engines.results import OtherSettingsError
from benchmarks.peers.engines.shown import Shown
from benchmarks.peers.engines.workloads import FULL

PARTS = ("loads", "online", "quality")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers", help="the folder of setup.sh")
    parser.add_argument("--quick", action="store_true", help="one round, smaller W3, W4 and W5: does it all work?")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--columns", nargs="+", metavar="NAME", help='e.g. "paceline int8" "llama.cpp Q4_0"')
    parser.add_argument("--loads", nargs="+", choices=sorted(FULL), help="of W1 to W4; default: all")
    parser.add_argument("--rounds", type=int, help="of each load; default 5, 5, 3, 3")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0], help="of W5")
    parser.add_argument("--start-rate", type=float, default=1.5, help="offered first")
    parser.add_argument("--requests", type=int, help=f"of W5 at each rate; default {REQUESTS}")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of a step in W5")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="results; default PEERS/results/full.jsonl, or quick.jsonl")
    parser.add_argument("--svg", type=Path, help="where the roofline goes; default: beside the results")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--show", action="store_true", help="only print what was measured")
    given = parser.parse_args()
    given.peers, given.rates = given.peers.resolve(), sorted(given.rates)
    return given


def main() -> int:
    given = arguments()
    machine = Machine(given.peers, given.threads, given.chunk)
    known = columns(machine)
    unknown = set(given.columns or ()) - {column.name for column in known}
    if unknown:
        raise SystemExit(f"no such column: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in known)}")
    chosen = [column for column in known if given.columns is None or column.name in given.columns]
    for column in chosen:
        if column.missing():
            print(f"{column.name}: left out: {column.missing()}", file=sys.stderr)
    try:
        comparison = Comparison(given, machine, [column for column in chosen if not column.missing()])
    except OtherSettingsError as error:
        raise SystemExit(str(error)) from None
    status = 0
    if not given.show:
        try:
            comparison.run()
        except KeyboardInterrupt:
            status = 130  # what was measured is kept and shown; the same command goes on
    shown, path = Shown(comparison), comparison.results.path
    print(shown.page())
    path.with_suffix(".md").write_text(shown.page() + "\n", encoding="utf-8")
    drawing = shown.chart()
    if drawing is not None:
        picture = given.svg or path.with_suffix(".svg")
        picture.write_text(drawing, encoding="utf-8")
        print(f"\nroofline: {picture}")
    return status


if __name__ == "__main__":
    sys.exit(main())
