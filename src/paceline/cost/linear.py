"""A step's time as a straight line: a fixed part, and one price each per token, row and token of context."""

from __future__ import annotations

from paceline.contracts.ports import EngineSnapshot, Prices, StepShape
from paceline.cost.estimate import Estimate, exact
from paceline.cost.room import most_tokens
from paceline.cost.ttft import predict_ttft
from paceline.errors import ConfigError


class LinearStepCost:
    """`ms = fixed + per_token * tokens + per_row * rows + per_context_token * context`.

    Implements `contracts.ports.CostModel`. The coefficients are given, not learnt: `observe` keeps the latest pair of
    shape and time for whoever wants to compare, and changes no answer. The context term is linear in cached tokens, so
    the quadratic part of a long chunk's attention is not priced.
    """

    def __init__(
        self,
        fixed_ms: float = 5.0,
        per_token_ms: float = 0.05,
        per_row_ms: float = 0.02,
        per_context_token_ms: float = 0.0002,
    ) -> None:
        coefficients = (fixed_ms, per_token_ms, per_row_ms, per_context_token_ms)
        if any(not 0.0 <= c < float("inf") for c in coefficients):
            raise ConfigError("a step cost coefficient is out of range", seen=coefficients, expected="0 ms or more")
        self.fixed_ms = fixed_ms
        self.per_token_ms = per_token_ms
        self.per_row_ms = per_row_ms
        self.per_context_token_ms = per_context_token_ms
        self.last_observed: tuple[StepShape, float] | None = None

    @property
    def prices(self) -> Prices:
        """The arguments that make an equal one."""
        return {
            "fixed_ms": self.fixed_ms,
            "per_token_ms": self.per_token_ms,
            "per_row_ms": self.per_row_ms,
            "per_context_token_ms": self.per_context_token_ms,
        }

    def step_ms(self, shape: StepShape) -> float:
        """Milliseconds of one step; a step without rows costs nothing."""
        if shape.num_rows == 0:
            return 0.0
        return (
            self.fixed_ms
            + self.per_token_ms * shape.num_tokens
            + self.per_row_ms * shape.num_rows
            + self.per_context_token_ms * shape.context_tokens
        )

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float:
        """What `num_tokens` positions behind `num_cached` others add to a step that runs anyway."""
        if num_tokens <= 0:
            return 0.0
        return self.per_token_ms * num_tokens + self.per_row_ms + self.per_context_token_ms * num_cached

    def tokens_within(self, ms: float, shape: StepShape, num_cached: int = 0, *, at_most: int) -> int:
        """Most positions of one prompt behind `num_cached` others that a step of `shape` takes within `ms`."""
        return most_tokens(self.step_ms, ms, shape, num_cached, at_most)

    def estimate(self, shape: StepShape) -> Estimate:
        """The step's time; a price that is given is exact."""
        return exact(self.step_ms(shape), "prices that were given")

    def predict_ttft(self, snapshot: EngineSnapshot, num_prompt: int, num_cached: int = 0) -> Estimate:
        """Milliseconds to the first token of a prompt that comes now."""
        return predict_ttft(self, snapshot, num_prompt, num_cached)

    def observe(self, shape: StepShape, ms: float) -> None:
        self.last_observed = (shape, ms)
