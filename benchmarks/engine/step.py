"""Host time of a step by part: `python benchmarks/engine/step.py [--rows 1,32,256] [--waiting 10000]`.

The input build of the torch runtime is measured too, and prices that learn.
`paceline bench-step` prints the same table.
"""

from __future__ import annotations

import argparse

from paceline.cost import LinearStepCost, StepCost
from paceline.engine import bench
from paceline.runtime.input_bench import TorchInputBuild


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    rows = [int(r) for r in options.rows.split(",")]
    table = bench.run(
        rows,
        options.waiting,
        steps=options.steps,
        make_build=TorchInputBuild,
        make_cost=lambda: StepCost.from_prior(LinearStepCost()),
    )
    print(bench.render(table))


if __name__ == "__main__":
    main()
