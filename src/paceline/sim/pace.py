"""When each step of a run of decode steps ends, without looking at each of them.

From one step to the next only the context grows, by one token per row. Where the price is a straight line over the run,

    end of step j = start + j a + b j (j - 1) / 2        a: first step, b: what each step adds

in closed form. Whether it is one is tried at five points; where it is not, every step is priced by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import sqrt

from paceline.contracts.ports import CostModel, StepShape
from paceline.cost import LinearStepCost, StepCost

_STRAIGHT = 1e-12  # relative: a sum of thousands of steps is then right to far below a nanosecond
_FEW = 6  # steps that are priced one by one anyway
_LINEAR = (LinearStepCost, StepCost)  # sums of prices times amounts: decode rows move along a straight line


class Pace:
    """The ends of `num_steps` decode steps, the first of which has `shape` and begins at `start` (seconds)."""

    __slots__ = ("_a", "_b", "_ends", "num_steps", "start")

    def __init__(self, cost: CostModel, shape: StepShape, num_steps: int, start: float) -> None:
        self.start = start
        self.num_steps = num_steps
        self._ends: list[float] | None = None
        last = num_steps - 1
        self._a = first = cost.step_ms(shape) / 1e3
        self._b = (cost.step_ms(later(shape, last)) / 1e3 - first) / last if last > 0 else 0.0
        if last > 1 and not isinstance(cost, _LINEAR) and not self._is_straight(cost, shape):
            ends, time = [start], start
            for step in range(num_steps):
                time += cost.step_ms(later(shape, step)) / 1e3
                ends.append(time)
            self._ends = ends

    def _is_straight(self, cost: CostModel, shape: StepShape) -> bool:
        last = self.num_steps - 1
        if last <= _FEW:
            return False
        return all(
            abs(cost.step_ms(later(shape, step)) / 1e3 - (self._a + self._b * step)) <= _STRAIGHT * self._a
            for step in (last // 4, last // 2, 3 * last // 4)
        )

    def end(self, num: int) -> float:
        """When `num` steps are done."""
        if self._ends is not None:
            return self._ends[num]
        return self.start + (num * self._a + self._b * (num * (num - 1) // 2))

    def ends(self, nums: Sequence[int]) -> list[float]:
        """The same for each of `nums`."""
        if self._ends is not None:
            return [self._ends[num] for num in nums]
        start, a, b = self.start, self._a, self._b
        return [start + (num * a + b * (num * (num - 1) // 2)) for num in nums]

    def begun_before(self, time: float) -> int:
        """How many steps begin before `time`."""
        if self._ends is not None:
            return bisect_left(self._ends, time, 0, self.num_steps)
        if time <= self.start:
            return 0
        half = self._a - self._b / 2
        root = sqrt(max(0.0, half * half + 2 * self._b * (time - self.start)))
        num = min(self.num_steps, int(2 * (time - self.start) / (half + root)) + 1)
        while num < self.num_steps and self.end(num) < time:
            num += 1
        while num > 0 and self.end(num - 1) >= time:
            num -= 1
        return num


def later(shape: StepShape, num_steps: int) -> StepShape:
    """The same decode rows so many steps later."""
    more = num_steps * shape.num_rows
    return StepShape(
        num_tokens=shape.num_tokens,
        num_rows=shape.num_rows,
        num_sampled=shape.num_sampled,
        context_tokens=shape.context_tokens + more,
        attention_pairs=shape.attention_pairs + more,
    )
