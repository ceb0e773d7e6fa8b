"""How many positions of a prompt fit a step of so many milliseconds: the inverse of a step's price."""

from __future__ import annotations

from collections.abc import Callable

from paceline.contracts.ports import StepShape, joined, prefill_shape


def most_tokens(
    step_ms: Callable[[StepShape], float], ms: float, shape: StepShape, num_cached: int, at_most: int
) -> int:
    """The most positions of one prompt, behind `num_cached` others, with which a step of `shape` stays within `ms`.

    By halving, so `step_ms` is asked about log2(at_most) times; it must not fall as positions are added. The prompt is
    taken to draw at its end, which a chunk that is not the last does not: the answer errs on the short side.
    """
    low, high = 0, max(0, at_most)
    if high and step_ms(joined(shape, prefill_shape(high, num_cached))) <= ms:
        return high  # as is most often the case
    while low < high:
        middle = (low + high + 1) // 2
        if step_ms(joined(shape, prefill_shape(middle, num_cached))) <= ms:
            low = middle
        else:
            high = middle - 1
    return low
