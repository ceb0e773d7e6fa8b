"""Host time of a step by part: `python benchmarks/engine/step.py [--rows 1,32,256] [--waiting 10000]`.

With torch at hand the input build of the torch runtime is measured too.
"""

from __future__ import annotations

import argparse
import importlib.util

from paceline.contracts.kv import KVLayout
from paceline.contracts.step import StepPlan, StepResult
from paceline.engine import bench


class TorchInputBuild:
    """`runtime.input_batch` as the benchmark drives it: rows kept, a step's tensors built, drawn tokens taken in."""

    def __init__(self, layout: KVLayout, rows: int, max_model_len: int) -> None:
        import torch

        from paceline.runtime.input_batch import InputBatch

        self._batch = InputBatch(layout, max_rows=rows, max_model_len=max_model_len, device=torch.device("cpu"))

    def build(self, plan: StepPlan) -> object:
        self._batch.apply(plan)
        return self._batch.build(plan)

    def append(self, result: StepResult) -> None:
        self._batch.append_one_each(result.row, result.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    rows = [int(r) for r in options.rows.split(",")]
    make_build = TorchInputBuild if importlib.util.find_spec("torch") is not None else None
    print(bench.render(bench.run(rows, options.waiting, steps=options.steps, make_build=make_build)))


if __name__ == "__main__":
    main()
