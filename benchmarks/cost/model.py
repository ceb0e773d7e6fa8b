"""What the cost model itself costs: microseconds of an answer and of learning from a step.

    python benchmarks/cost/model.py

CPU time, fastest of five runs each; learning is part of every engine step, answers come several times a step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.pure.config.specs import SMOLLM2

from paceline.contracts.ports import StepShape
from paceline.contracts.specs import DeviceSpec
from paceline.cost import StepCost, StepPrior, decode_shape, joined, prefill_shape

CALLS = 2000


def make_cost() -> StepCost:
    device = DeviceSpec(kind="cpu", name="", memory_bytes=1 << 33, num_cores=2, gflops=200.0, memory_gbps=20.0)
    return StepCost.from_prior(StepPrior(SMOLLM2, device))


def make_shapes() -> list[StepShape]:
    draw = random.Random(0)
    shapes = []
    for _ in range(CALLS):
        decodes = decode_shape(draw.randrange(1, 17), draw.randrange(16, 900))
        shapes.append(joined(decodes, prefill_shape(draw.randrange(8, 256))) if draw.random() < 0.3 else decodes)
    return shapes


def fastest_us(call: Callable[[StepShape], object], shapes: list[StepShape]) -> float:
    """Microseconds of one call."""
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        for shape in shapes:
            call(shape)
        best = min(best, time.process_time() - begin)
    return best / len(shapes) * 1e6


def main() -> None:
    cost, shapes = make_cost(), make_shapes()
    steps = [cost.step_ms(shape) * (0.9 + 0.2 * (at % 2)) for at, shape in enumerate(shapes)]
    at = iter(steps * 5)
    rows: list[tuple[str, Callable[[StepShape], object]]] = [
        ("step_ms", cost.step_ms),
        ("estimate", cost.estimate),
        ("tokens_within", lambda shape: cost.tokens_within(200.0, shape, at_most=512)),
        ("observe", lambda shape: cost.observe(shape, next(at))),
    ]
    for name, call in rows:
        print(f"{name:14s} {fastest_us(call, shapes):7.1f} us")


if __name__ == "__main__":
    main()
