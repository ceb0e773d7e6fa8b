"""The planner's step times of a layout as a cost model that a simulated engine can run on.

A round is a step of all rows of a replica, through all stages. Rounds of decode rows alone, of which a simulation asks
thousands, are a straight line in the context for each number of rows; it is drawn through two prices once. All others
are asked for as they come. So prices are the planner's own, chunk by chunk, bends of products and all.

Not straight in truth: sliding layers near their window. The line goes through half and one and a half times a context.
"""

from __future__ import annotations

from paceline.contracts.ports import EngineSnapshot, StepShape
from paceline.cost import Estimate, decode_shape, predict_ttft, prefill_shape
from paceline.cost.room import most_tokens
from paceline.planner.step import LayoutSteps


class RoundPrices:
    """A `contracts.ports.CostModel` that learns nothing. `context`: tokens that a decoding row has about."""

    def __init__(self, steps: LayoutSteps, context: int) -> None:
        self._steps = steps
        self._near, self._far = max(1, context // 2), max(2, context + context // 2)
        self._lines: dict[int, tuple[float, float]] = {}  # decode rows -> ms without context, ms per token of it

    def step_ms(self, shape: StepShape) -> float:
        """Milliseconds of one round; a step without rows costs nothing."""
        rows, context = shape.num_rows, shape.context_tokens
        if not rows:
            return 0.0
        decodes = shape.num_tokens == shape.num_sampled == rows and shape.attention_pairs == context + rows
        if not decodes or shape.num_prompt_logits:
            return self._steps.round_ms(shape)
        if rows not in self._lines:
            self._lines[rows] = self._line(rows)
        base, slope = self._lines[rows]
        return base + slope * context

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        """What a chunk takes beyond a round of one row that decodes."""
        if num_tokens <= 0:
            return 0.0
        alone = self.step_ms(prefill_shape(num_tokens, num_cached))
        return max(0.0, alone - self.step_ms(decode_shape(1, 0)))

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        """Most positions of one prompt, behind `num_cached` others, that a round of `shape` takes within `ms`."""
        return most_tokens(self.step_ms, ms, shape, num_cached, at_most)

    def estimate(self, shape: StepShape) -> Estimate:
        """A round with the interval of the prices it is made of."""
        found, ms = self._steps.times.estimate(shape), self.step_ms(shape)
        return found.times(ms / found.value if found.value > 0 else 1.0)

    def predict_ttft(self, snapshot: EngineSnapshot, num_prompt: int, num_cached: int = 0) -> Estimate:
        """Milliseconds to the first token of a prompt that comes now."""
        return predict_ttft(self, snapshot, num_prompt, num_cached)

    def observe(self, shape: StepShape, ms: float) -> None:
        """Nothing: prices are given."""

    def _line(self, rows: int) -> tuple[float, float]:
        near, far = (self._steps.round_ms(decode_shape(rows, each)) for each in (self._near, self._far))
        slope = max(0.0, (far - near) / (rows * (self._far - self._near)))
        return near - slope * rows * self._near, slope
