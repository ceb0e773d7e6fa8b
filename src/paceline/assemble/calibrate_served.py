"""Prices of steps as a server takes them: with the loop around each, and with the clients that share the machine.

`calibrate` times the device part of steps when nothing else runs. A server that serves does more between two steps, and
on a machine whose cores it shares with its clients each step is slower. Its journal (`serve --journal FILE`) holds the
plans and when each was made, so what a step took of the engine is the time from its plan to the next one. Prices are
fitted to these, from those of an earlier calibration where they say nothing; then one factor makes their sum the sum
that was served, because a queue feels the mean of its steps and not the middle.

What a request takes outside the engine, HTTP and the client's own work, is the rest of its TTFT: a run of the lab
beside the journal tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum, log2
from pathlib import Path
from statistics import median

import msgspec

from paceline.assemble.step_cost import load_calibration, save_calibration
from paceline.contracts.artefact import TOKEN_KINDS, RequestRecord
from paceline.cost import Calibration, StepCost, TimedCell, restore
from paceline.cost.batch import fit_steps
from paceline.engine import ServedStep, served_steps
from paceline.errors import ConfigError
from paceline.lab.artefact import read_run

LEAST_STEPS = 50


def calibrate_served(base: Path, journals: Sequence[Path], runs: Sequence[Path] = (), *, out: Path) -> Calibration:
    """The calibration `base`, fitted again to the steps of `journals` and, for `request_ms`, to what clients saw in
    `runs`, saved in `out`.

    Raises ConfigError for a base that is none and for too few steps, and what `served_steps` and reading a run raise.
    """
    timed = load_calibration(base)
    steps = [step for journal in journals for step in served_steps(journal, restore)]
    requests = [outside_ms(record) for run in runs for record in read_run(run).records]
    found = refitted(timed, steps, [ms for ms in requests if ms is not None])
    save_calibration(out, found)
    return found


def refitted(before: Calibration, steps: Sequence[ServedStep], requests_ms: Sequence[float] = ()) -> Calibration:
    """`before` with the prices of `steps`. Raises ConfigError for fewer than LEAST_STEPS."""
    if len(steps) < LEAST_STEPS:
        raise ConfigError(
            "too few steps to learn prices from",
            seen=f"{len(steps)} with another right behind them",
            expected=f"{LEAST_STEPS} or more",
            fix="record a server under load",
        )
    cost = before.cost()
    factor = median(step.ms / max(cost.step_ms(step.shape), 1e-6) for step in steps)
    timed = [(step.shape, step.ms) for step in steps]
    fitted = fit_steps(cost.times(factor), timed, step_spread=0.0)
    whole = fsum(ms for _, ms in timed) / fsum(fitted.step_ms(shape) for shape, _ in timed)
    served = fitted.times(whole)
    return msgspec.structs.replace(
        before,
        prices=served.prices,
        cells=tuple(_cells(steps, served)),
        served=len(steps),
        request_ms=median(requests_ms) if requests_ms else before.request_ms,
    )


def outside_ms(record: RequestRecord) -> float | None:
    """What a streamed answer's first token took beyond queue and prefill, since it was asked for. None: untold."""
    first = next((chunk.t_ns for chunk in record.chunks if chunk.kind in TOKEN_KINDS), None)
    parts = [record.server.get(name) for name in ("queue_ms", "prefill_ms")]
    if first is None or not record.streamed or None in parts:
        return None
    return max(0.0, (first - record.t_send_ns) / 1e6 - fsum(part for part in parts if part is not None))


def _cells(steps: Iterable[ServedStep], cost: StepCost) -> list[TimedCell]:
    """Steps of about one size together: rows, and positions and context within a factor of two."""
    groups: dict[tuple[int, int, int], list[ServedStep]] = {}
    for step in steps:
        shape = step.shape
        key = (shape.num_rows, int(log2(shape.num_tokens)), int(log2(1 + shape.context_tokens)))
        groups.setdefault(key, []).append(step)
    cells = []
    for _, same in sorted(groups.items()):
        same.sort(key=lambda step: step.ms)
        shape = same[len(same) // 2].shape  # of the one in the middle
        name = f"{shape.num_rows} rows, about {shape.num_tokens} tokens behind {shape.context_tokens}"
        cells.append(TimedCell.of(name, shape, [step.ms for step in same], predicted_ms=cost.step_ms(shape)))
    return cells
