"""What steps cost on the device a configuration is for: the cost model, asked in the words of the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.contracts.kv import KVFormat
from paceline.contracts.ports import StepShape
from paceline.contracts.specs import ModelSpec
from paceline.cost.estimate import Estimate
from paceline.cost.features import decode_shape


class StepEstimates(Protocol):
    """The cost model as far as a lint asks it: `cost.StepPrior` and `cost.StepCost` are such."""

    def estimate(self, shape: StepShape) -> Estimate: ...

    def prefill_ms(self, num_tokens: int, num_cached: int = 0) -> float: ...


@dataclass(frozen=True)
class Prices:
    cost: StepEstimates
    spec: ModelSpec
    kv: KVFormat
    ridge: float | None = None  # positions of a step from which products take longer to compute than weights to read

    def decode(self, num_rows: int, context: int) -> Estimate:
        """Milliseconds of a step in which `num_rows` sequences of `context` tokens get one token each."""
        return self.cost.estimate(decode_shape(num_rows, context))

    def verify(self, num_positions: int, num_rows: int, context: int) -> Estimate:
        """The same with drafts: `num_positions` in all, each of which sees its row's context."""
        more = num_positions - num_rows
        plain = decode_shape(num_rows, context)
        return self.cost.estimate(
            StepShape(
                num_tokens=num_positions,
                num_rows=num_rows,
                num_sampled=num_positions,
                context_tokens=plain.context_tokens,
                attention_pairs=plain.attention_pairs + more * context,
            )
        )

    def prefill_ms(self, num_tokens: int) -> float:
        return self.cost.prefill_ms(num_tokens)

    def kv_bytes(self, num_tokens: int) -> int:
        """KV of one sequence."""
        return self.kv.sequence_bytes(self.spec, num_tokens)

    def largest_batch(self, limit_ms: float, context: int, most: int) -> int:
        """Most rows, up to `most`, whose decode step stays within `limit_ms`; 0 when not even one does. A step never
        gets faster by a row, so it can be halved for."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.decode(middle, context).value <= limit_ms:
                low = middle
            else:
                high = middle - 1
        return low
