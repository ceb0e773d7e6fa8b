"""What a machine would do, without serving: for `paceline doctor` and `paceline bench-step`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.assemble.core import probe
from paceline.assemble.isa import limit_isa
from paceline.config import EngineConfig, read_environment
from paceline.contracts.specs import DeviceSpec


def find_device(config: EngineConfig) -> tuple[DeviceSpec, str]:
    """The device a configuration would use, measured, and its compute dtype."""
    from paceline.runtime.device import choose_device, choose_dtype

    kind = choose_device(config.device.device)
    dtype, _ = choose_dtype(config.model.dtype, kind)
    return probe(config, kind, dtype), dtype


def kernel_table(kind: str, dtype: str, numerics: str) -> list[tuple[str, str, str]]:
    """Rows (op, implementation, why) of the kernels that would serve under the environment's cap on instructions."""
    from paceline.runtime.device import DTYPES
    from paceline.runtime.kernels import explain

    limit_isa(read_environment())
    rows = []
    for line in explain(kind, DTYPES[dtype], "reference" if numerics == "reference" else "fast"):
        passed_over = "; ".join(f"not {name}: {why}" for name, why in line.passed_over)
        rows.append((line.op, line.kernel, f"{line.reason}{'; ' + passed_over if passed_over else ''}"))
    return rows


def bench_step(rows: Sequence[int], waiting: int) -> list[dict[str, Any]]:
    """Host microseconds of a step by part, the torch input build and prices that learn included; see
    `engine.bench.run`."""
    from paceline.cost import LinearStepCost, StepCost
    from paceline.engine.bench import run
    from paceline.runtime.input_bench import TorchInputBuild

    return run(rows, waiting, make_build=TorchInputBuild, make_cost=lambda: StepCost.from_prior(LinearStepCost()))
