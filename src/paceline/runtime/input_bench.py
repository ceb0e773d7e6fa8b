"""The input build as the step benchmark drives it: rows kept, a step's tensors built, drawn tokens taken in."""

from __future__ import annotations

import torch

from paceline.contracts.kv import KVLayout
from paceline.contracts.step import StepPlan, StepResult
from paceline.runtime.input_batch import InputBatch


class TorchInputBuild:
    """Implements `engine.bench.InputBuild` on the CPU."""

    def __init__(self, layout: KVLayout, rows: int, max_model_len: int) -> None:
        self._batch = InputBatch(layout, max_rows=rows, max_model_len=max_model_len, device=torch.device("cpu"))

    def build(self, plan: StepPlan) -> object:
        self._batch.apply(plan)
        return self._batch.build(plan)

    def append(self, result: StepResult) -> None:
        self._batch.append_one_each(result.row, result.tokens)
