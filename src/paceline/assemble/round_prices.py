"""The planner's step times of a layout as a cost model that a simulated engine can run on.

A round is a step of all rows of a replica, through all stages. Rounds of decode rows alone, of which a simulation asks
thousands, lie on a straight line in the context for each number of rows, but where a window or a link begins to count:
lines are drawn between powers of two of a row's context, and the middles of those, once (two percent off at most at
such a bend). All other rounds are asked for as they come. So prices are the planner's own, chunk by chunk, bends of
products and all.
"""

from __future__ import annotations

from functools import lru_cache

from paceline.contracts.ports import EngineSnapshot, StepShape
from paceline.cost import Estimate, decode_shape, predict_ttft, prefill_shape
from paceline.cost.room import most_tokens
from paceline.planner.step import LayoutSteps

MOST_CHUNKS = 1 << 14  # sizes whose prices are kept: whoever schedules asks for the same prompts in step after step


class RoundPrices:
    """A `contracts.ports.CostModel` that learns nothing."""

    def __init__(self, steps: LayoutSteps) -> None:
        self._steps = steps
        # (decode rows, where a row's context is) -> ms without context, ms per token of all rows'
        self._lines: dict[tuple[int, int], tuple[float, float]] = {}
        self._chunk_ms = lru_cache(MOST_CHUNKS)(self._price_chunk)

    def step_ms(self, shape: StepShape) -> float:
        """Milliseconds of one round; a step without rows costs nothing."""
        rows, context = shape.num_rows, shape.context_tokens
        if not rows:
            return 0.0
        decodes = shape.num_tokens == shape.num_sampled == rows and shape.attention_pairs == context + rows
        if not decodes or shape.num_prompt_logits:
            return self._steps.round_ms(shape)
        each = context // rows
        size = 1 << max(0, each.bit_length() - 2)
        key = (rows, each // size * size)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._line(*key, size)
        return line[0] + line[1] * context

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        """What a chunk takes beyond a round of one row that decodes."""
        return self._chunk_ms(num_tokens, num_cached) if num_tokens > 0 else 0.0

    def _price_chunk(self, num_tokens: int, num_cached: int) -> float:
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

    def _line(self, rows: int, begin: int, size: int) -> tuple[float, float]:
        near, far = (self._steps.round_ms(decode_shape(rows, each)) for each in (begin, begin + size))
        slope = max(0.0, (far - near) / (rows * size))
        return near - slope * rows * begin, slope
