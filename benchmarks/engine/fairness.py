"""What rows that give way buy a quiet tenant, in virtual time: the loads of law 7 with arrivals at random.

    python benchmarks/engine/fairness.py [--seconds 130]

Printed for each load: p95 TTFT of the quiet tenant beside 100 clients of another in multiples of its lone value,
without and with rows that skip the step of a first token, and what the flood kept of its tokens. No clock is read: the
numbers are the same anywhere.
"""

from __future__ import annotations

import argparse
import math

from tests.laws.test_fairness import LOADS, Load, run

from paceline.cost.linear import LinearStepCost
from paceline.engine import giving_way

# SmolLM2-135M on two cores with AVX2
CORES = LinearStepCost(fixed_ms=10.0, per_token_ms=1.7, per_row_ms=0.5, per_context_token_ms=0.001)
EIGHT = {"max_rows": 8, "max_num_batched_tokens": 40, "prefill_chunk_tokens": 32, "min_prefill_tokens": 8}
SIXTEEN = {"max_rows": 16, "max_num_batched_tokens": 72, "prefill_chunk_tokens": 48}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=130.0)
    seconds = parser.parse_args().seconds
    loads = {name: load for name, (load, _) in LOADS.items()}
    loads["two cores, 8 rows"] = Load(CORES, 30, EIGHT, flood_prompt=130)
    loads["two cores, 16 rows"] = Load(CORES, 32, SIXTEEN, flood_prompt=130)
    worth = giving_way.WORTH
    print(f"{'load':<36} {'never':>6} {'where it pays':>14} {'tokens of the flood':>20}")
    for name, load in loads.items():
        lone = run(load, clients=0, seconds=seconds, jitter=1.0)
        found = []
        for giving_way.WORTH in (math.inf, worth):
            found.append(run(load, seconds=seconds, jitter=1.0))
        before, after = (f.p95_s / lone.p95_s for f in found)
        print(f"{name:<36} {before:>6.2f} {after:>14.2f} {found[1].flood_tokens / found[0].flood_tokens:>20.3f}")


if __name__ == "__main__":
    main()
