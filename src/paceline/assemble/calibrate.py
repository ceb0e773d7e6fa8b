"""Time a short grid of steps on this machine with the real executor, and fit prices to them.

Cells are timed in rounds, each cell once a round, so that a machine which changes meanwhile changes all of them alike;
the first round warms up and is dropped. A probe cell is timed before and after: when it moved by more than 5 %, all is
timed again, as often as was asked. What is timed is a step's device part, which is what engines report.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from paceline.assemble.core import Core, build_core
from paceline.assemble.step_cost import calibration_path, save_calibration
from paceline.config import EngineConfig, Environment, read_environment
from paceline.contracts.ports import Executor
from paceline.contracts.step import StepPlan
from paceline.cost import Calibration, TimedCell
from paceline.cost.batch import MAD, fit_steps
from paceline.cost.cells import Cell, Limits, cell_plan, filling_plans, grid, held_out
from paceline.errors import ConfigError
from paceline.phases import OnPhase

MAX_DRIFT = 0.05
ATTEMPTS = 3
PROBE_TRIES = 15

OnRound = Callable[[int, int], None]
"""(rounds done, rounds in all) of the grid."""


def calibrate(
    config: EngineConfig,
    *,
    rounds: int = 5,
    attempts: int = ATTEMPTS,
    out: Path | None = None,
    environment: Environment | None = None,
    on_phase: OnPhase | None = None,
    on_round: OnRound | None = None,
) -> tuple[Calibration, Path]:
    """Load the model, time steps, fit, and save: to `out`, or where engines look. Returns what was saved, and where.

    Raises ConfigError for fewer than 3 rounds, and what `build_core` raises.
    """
    if rounds < 3 or attempts < 1:
        raise ConfigError(
            "too few rounds for a median", seen=f"{rounds} rounds, {attempts} attempts", expected="3 or more, 1 or more"
        )
    environment = environment or read_environment()
    quiet = msgspec.structs.replace(config, journal=None)
    built = build_core(quiet, environment=environment, on_phase=on_phase, looks_back=False)
    try:
        found = calibrate_core(built, rounds=rounds, attempts=attempts, on_round=on_round)
    finally:
        built.core.close()
    path = out or calibration_path(environment.home, found.key)
    save_calibration(path, found)
    return found, path


def calibrate_core(
    built: Core, *, rounds: int = 5, attempts: int = ATTEMPTS, on_round: OnRound | None = None
) -> Calibration:
    """The same for an engine that is there and idle."""
    executor, layout = built.core.executor, built.core.executor.caps.layout
    limits = Limits(
        max_rows=executor.caps.max_rows,
        max_tokens=executor.caps.max_tokens,
        max_model_len=built.memory.max_model_len,
        num_blocks=layout.num_blocks,
        block_size=layout.block_size,
    )
    fitted, others = grid(limits), held_out(limits)
    cells = [*fitted, *others]
    timer = StepTimer(executor)
    for plan in filling_plans(cells, layout, limits):
        timer.ms(plan)
    for attempt in range(1, attempts + 1):
        made = attempt
        before = timer.median_ms(fitted[0], PROBE_TRIES)
        tries = timer.rounds(cells, rounds, on_round)
        after = timer.median_ms(fitted[0], PROBE_TRIES)
        if abs(after - before) <= MAX_DRIFT * before:
            break
    timed = [
        TimedCell.of(str(cell), cell.shape, ms, held_out=at >= len(fitted))
        for at, (cell, ms) in enumerate(zip(cells, tries, strict=True))
    ]
    drift = abs(after - before) / before
    spread = max(MAD * median(cell.spread for cell in timed), drift if drift > MAX_DRIFT else 0.0)
    cost = fit_steps(built.prior, [(c.shape, c.ms) for c in timed if not c.held_out], step_spread=spread)
    return Calibration(
        key=built.cost_key,
        prices=cost.prices,
        cells=tuple(msgspec.structs.replace(cell, predicted_ms=cost.step_ms(cell.shape)) for cell in timed),
        probe_ms=(before, after),
        load_gbps=built.weight_bytes / max(built.phases["weights"], 1e-9) / 1e9,
        gflops=built.device.gflops,
        memory_gbps=built.device.memory_gbps,
        attempts=made,
    )


class StepTimer:
    """Runs plans on an executor that nobody else uses, one at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._steps = itertools.count()

    def ms(self, plan: StepPlan) -> float:
        """Device milliseconds of one step. Its number is given here: an executor sees each number once."""
        handle = self._executor.submit(msgspec.structs.replace(plan, step=next(self._steps)))
        self._executor.sample(handle, None)
        result = self._executor.poll(handle)
        assert result is not None, "a blocking poll returns a result"
        return result.device_ms

    def median_ms(self, cell: Cell, tries: int) -> float:
        plan = cell_plan(cell, self._executor.caps.layout, 0)
        self.ms(plan)
        return median(self.ms(plan) for _ in range(tries))

    def rounds(self, cells: Sequence[Cell], rounds: int, on_round: OnRound | None) -> list[list[float]]:
        """`rounds` times of each cell, after one that is dropped."""
        plans = [cell_plan(cell, self._executor.caps.layout, 0) for cell in cells]
        found: list[list[float]] = [[] for _ in cells]
        for done in range(rounds + 1):
            if on_round is not None:
                on_round(done, rounds + 1)
            for plan, times in zip(plans, found, strict=True):
                ms = self.ms(plan)
                if done:
                    times.append(ms)
        return found
