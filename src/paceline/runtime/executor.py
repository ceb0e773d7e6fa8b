"""The torch executor: plans in, results out, one at a time.

`submit` applies a plan's columns and runs the forward pass inline, `sample` draws, `poll` hands over the result. One
step is in flight at most: on a CPU an overlap thread takes cores from the forward pass and gains nothing. On a GPU more
depth would pay; `device_feedback` is off until that is built, and nothing here has run on a GPU yet.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import msgspec
import torch

from paceline.contracts.kv import KVLayout
from paceline.contracts.ports import ExecutorCaps, StepShape, plan_shape
from paceline.contracts.step import SampleInputs, StepPlan, StepResult
from paceline.runtime.model_runner import Forward, ModelRunner
from paceline.runtime.threads import torch_alone
from paceline.runtime.worker import Worker
from paceline.runtime.worst_plan import StepLimits


@dataclass(slots=True)
class StepHandle:
    """One plan on its way."""

    step: int
    forward: Forward | None
    ms: float  # forward pass, logits and draw; not the building of inputs
    result: StepResult | None = None


class TorchExecutor:
    """contracts.ports.Executor over one torch device.

    `max_tokens` bounds the positions of a step. `batch_invariant` says whether the model was built in reference
    numerics, where a row's logits do not depend on the rest of the step; `native`, whether native kernels do nearly all
    of it (see threads.py).
    """

    def __init__(
        self,
        runner: ModelRunner,
        layout: KVLayout,
        *,
        max_rows: int,
        max_tokens: int,
        batch_invariant: bool = False,
        native: bool = False,
    ) -> None:
        self.runner = runner
        self.native = native
        self.device = runner.rows.device
        self.caps = ExecutorCaps(
            layout=layout,
            max_rows=max_rows,
            max_tokens=max_tokens,
            vocab_size=runner.vocab_size,
            max_in_flight=1,
            spec_kinds=("host",),
            batch_invariant=batch_invariant,
            masks=True,
        )

    def submit(self, plan: StepPlan) -> StepHandle:
        inputs = self.runner.prepare(plan)
        begin = time.perf_counter()
        with self._threads():
            forward = self.runner.forward(plan, inputs)
        self._wait()
        return StepHandle(plan.step, forward, (time.perf_counter() - begin) * 1e3)

    def sample(self, handle: StepHandle, inputs: SampleInputs | None) -> None:
        assert handle.forward is not None, "sample is called once per submit"
        begin = time.perf_counter()
        with self._threads():
            result = self.runner.sample(handle.forward, inputs)
        handle.forward = None
        self._wait()
        handle.ms += (time.perf_counter() - begin) * 1e3
        handle.result = msgspec.structs.replace(result, device_ms=handle.ms)

    def poll(self, handle: StepHandle, *, block: bool = True) -> StepResult | None:
        assert handle.result is not None, "poll comes after sample"
        return handle.result

    def shape(self, plan: StepPlan) -> StepShape:
        return plan_shape(plan)

    def close(self) -> None:
        """Nothing to release: tensors go with the object."""

    def _threads(self) -> AbstractContextManager[None]:
        return torch_alone() if self.native else nullcontext()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def build_executor(worker: Worker, limits: StepLimits) -> TorchExecutor:
    """The executor over a worker whose KV cache is allocated."""
    assert worker.kv_cache is not None, "allocate_kv comes first"
    return TorchExecutor(
        worker.runner(limits),
        worker.kv_cache.layout,
        max_rows=limits.max_rows,
        max_tokens=limits.max_tokens,
        batch_invariant=worker.numerics == "reference",
        native=worker.model.runs_whole,
    )
