"""Step times of one layout: the cost model's prior with each axis on the link its groups really use.

A replica's rows are divided into as many micro-batches as there are stages, so that every stage has work. Each of them
gets a token every

    period = max(one step through all stages, stages x slowest stage)

and all rows together get one token per period. Prompts are computed by every stage's batch and every expert group at
once: one chunk each, so a replica has `num_servers` places where a prompt is worked on.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Protocol

import msgspec

from paceline.contracts.ports import StepShape, joined, prefill_shape
from paceline.contracts.specs import DeviceSpec, ModelSpec
from paceline.cost.estimate import Estimate
from paceline.cost.features import decode_shape
from paceline.cost.prior import StepPrior
from paceline.planner.devices import DeviceCard
from paceline.planner.layout import Layout


class StepTimes(Protocol):
    """What the cost model knows of steps: `StepPrior` and `StepCost` both do."""

    def step_ms(self, shape: StepShape) -> float: ...

    def estimate(self, shape: StepShape) -> Estimate: ...


class LayoutSteps:
    """Milliseconds of the steps of one replica. `scale`: all of them longer by so much."""

    def __init__(
        self, times: StepTimes, *, stages: int = 1, groups: int = 1, moved: _Moved | None = None, scale: float = 1.0
    ) -> None:
        self.times, self.stages, self.groups, self.scale = times, stages, groups, scale
        self._moved = moved
        self._seen: dict[tuple[int, ...], float] = {}

    @property
    def num_servers(self) -> int:
        """Prompts that are worked on at once."""
        return self.stages * self.groups

    def scaled(self, scale: float) -> LayoutSteps:
        return LayoutSteps(
            self.times, stages=self.stages, groups=self.groups, moved=self._moved, scale=self.scale * scale
        )

    def period_ms(self, shape: StepShape) -> float:
        """Between two tokens of a row when each stage runs steps of `shape`."""
        if not isinstance(self.times, StepPrior):
            return self.times.step_ms(shape) * self.scale
        parts = self.times.parts(shape)
        step = sum(parts.values())
        if self.stages > 1:
            step = max(step, self.stages * self.times.interval_ms(shape))
        return (step + (self._moved.extra_ms(shape, parts) if self._moved else 0.0)) * self.scale

    def round_ms(self, shape: StepShape) -> float:
        """Until all rows of `shape` have gone on once: as many micro-batches as there are stages follow each other, or
        as many as there are rows, and then stages stand idle (the bubble). A prompt's chunk is not cut."""
        batches = max(1, min(self.stages, shape.num_rows))
        if batches == 1 or not isinstance(self.times, StepPrior):
            return self._through_ms(shape)
        micro = _part(shape, batches)
        return max(self._through_ms(micro), batches * self.times.interval_ms(micro) * self.scale)

    def _through_ms(self, shape: StepShape) -> float:
        """One step through all stages."""
        if not isinstance(self.times, StepPrior):
            return self.times.step_ms(shape) * self.scale
        parts = self.times.parts(shape)
        return (sum(parts.values()) + (self._moved.extra_ms(shape, parts) if self._moved else 0.0)) * self.scale

    def spent_ms(self, shape: StepShape, axis: str) -> float:
        """What the messages of an axis (tp, pp) take of one step through all stages; 0 for steps timed as a whole."""
        if not isinstance(self.times, StepPrior):
            return 0.0
        parts = self.times.parts(shape)
        more = self._moved.extra_ms(shape, parts, axis) if self._moved else 0.0
        return (parts.get(PARTS[axis], 0.0) + more) * self.scale

    def decode_ms(self, num_rows: int, context: int) -> float:
        """Between two tokens when `num_rows` sequences of `context` tokens decode."""
        key = (num_rows, context)
        if key not in self._seen:
            self._seen[key] = self.period_ms(decode_shape(self._rows(num_rows), context))
        return self._seen[key]

    def mixed_ms(self, num_rows: int, context: int, chunk: int, cached: int) -> float:
        """The same when prompts are computed beside them, a chunk behind `cached` positions in each place."""
        key = (num_rows, context, chunk, cached)
        if key not in self._seen:
            shape = _times(prefill_shape(chunk, cached), self.groups)
            if num_rows:
                shape = joined(decode_shape(self._rows(num_rows), context), shape)
            self._seen[key] = self.period_ms(shape)
        return self._seen[key]

    def drafted_ms(self, num_tokens: int, num_rows: int, context: int) -> float:
        """A step that verifies: `num_tokens` positions over `num_rows` rows."""
        rows = self._rows(num_rows)
        shape = decode_shape(rows, context)
        more = max(0, ceil(num_tokens / self.stages) - rows)
        return self.period_ms(
            StepShape(
                num_tokens=rows + more,
                num_rows=rows,
                num_sampled=rows + more,
                context_tokens=shape.context_tokens,
                attention_pairs=shape.attention_pairs + more * context,
            )
        )

    def estimate(self, num_rows: int, context: int) -> Estimate:
        """A decode step with its interval, the period's scale applied."""
        shape = decode_shape(self._rows(num_rows), context)
        found = self.times.estimate(shape)
        return found.times(self.period_ms(shape) / found.value if found.value > 0 else 1.0)

    def _rows(self, num_rows: int) -> int:
        return max(1, ceil(num_rows / self.stages))


PARTS = {
    "tp": "tensor_parallel",
    "cp": "context",
    "ep": "experts",
    "pp": "pipeline",
}  # of a step, that each axis talks in


class _Moved:
    """What groups that leave their node add to steps priced on the fast link alone."""

    def __init__(self, slow: StepPrior, crossing: dict[str, bool]) -> None:
        self._slow = slow
        self._names = {axis: PARTS[axis] for axis, crosses in crossing.items() if crosses}

    def extra_ms(self, shape: StepShape, fast: Mapping[str, float], axis: str = "") -> float:
        """`fast`: the step's parts on the fast link. `axis`: of this one alone."""
        slow = self._slow.parts(shape)
        names = [name for each, name in self._names.items() if axis in ("", each)]
        return sum(slow.get(name, 0.0) - fast.get(name, 0.0) for name in names)


def layout_prior(
    spec: ModelSpec,
    card: DeviceCard,
    layout: Layout,
    *,
    per_node: int,
    weights: str,
    weight_bytes: float,
    dtype_bytes: int,
    kv_dtype_bytes: float,
    expert_imbalance: float = 1.0,
) -> LayoutSteps:
    """Steps of a layout from published rates. `weight_bytes`: of the whole model."""
    device = _at_rate(card, weights)
    degrees = layout.degrees
    busiest = max(degrees.tp, degrees.ep, degrees.cp)  # of the groups that reduce or exchange
    options = {
        "weight_bytes": weight_bytes,
        "dtype_bytes": dtype_bytes,
        "kv_dtype_bytes": kv_dtype_bytes,
        "degrees": degrees,
        "expert_imbalance": expert_imbalance if degrees.ep > 1 else 1.0,
    }
    fast = StepPrior(spec, device, link=card.fast_link(busiest), **options)  # type: ignore[arg-type]
    crossing = layout.crosses(per_node)
    if not any(crossing.values()):
        return LayoutSteps(fast, stages=degrees.pp, groups=degrees.ep)
    slow = StepPrior(spec, device, link=card.network(), **options)  # type: ignore[arg-type]
    return LayoutSteps(fast, stages=degrees.pp, groups=degrees.ep, moved=_Moved(slow, crossing))


def _at_rate(card: DeviceCard, weights: str) -> DeviceSpec:
    return msgspec.structs.replace(card.spec, gflops=card.rate(weights))


def _part(shape: StepShape, count: int) -> StepShape:
    """One of `count` equal micro-batches, rounded up."""
    return StepShape(
        num_tokens=ceil(shape.num_tokens / count),
        num_rows=ceil(shape.num_rows / count),
        num_sampled=ceil(shape.num_sampled / count),
        context_tokens=ceil(shape.context_tokens / count),
        attention_pairs=ceil(shape.attention_pairs / count),
        num_prompt_logits=ceil(shape.num_prompt_logits / count),
    )


def _times(shape: StepShape, count: int) -> StepShape:
    return StepShape(
        num_tokens=shape.num_tokens * count,
        num_rows=shape.num_rows * count,
        num_sampled=shape.num_sampled * count,
        context_tokens=shape.context_tokens * count,
        attention_pairs=shape.attention_pairs * count,
    )
