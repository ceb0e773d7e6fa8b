"""Targets of rows against targets of prompts, where not all can be kept.

A step that protects every row gives prompts what the tightest row leaves. One row at the edge of its target may then
hold up many prompts that would be in time without it. So where some prompt would be late for the sake of the rows, a
few longer steps are priced: prompts that would be in time, less the targets that rows likely lose by it. The step with
the most is taken, and of equals the shortest, which protects most.

A row's end is not foreseen closer than a share of the time it likely still takes. So it loses its target by a delay
with the probability that its end, spread evenly over that, falls into the delay; a row that is ahead by more loses
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

UNSURE = 0.2  # of the time a row likely still takes: nobody foresees it closer than that
WORTH = 0.5  # of a target: a prompt in time has its tokens still to come, and they may miss theirs


class RowRoom(NamedTuple):
    """What a row that decodes leaves to others."""

    step_s: float  # how long a step may take for its sake
    likely: int  # tokens it will likely still make
    spare_s: float  # what it will likely be ahead with the last of them
    unsure_s: float  # how far that may be wrong, to both sides

    def risk(self, delay_s: float) -> float:
        """The probability that it loses its target by a delay."""
        if self.spare_s - delay_s > self.unsure_s:
            return 0.0
        return min(1.0, delay_s / (2.0 * self.unsure_s)) if self.unsure_s > 0.0 else 1.0


def num_in_time(prompts: Iterable[tuple[float, float]], step_s: float, room_s: float) -> tuple[int, float]:
    """Prompts (what each takes, and until when from now its first token is due; in that order) that are in time, and
    what those take. In each step of `step_s` without prompts there is `room_s` for them; those that would be late wait.
    """
    num, took_s = 0, 0.0
    for takes_s, due_s in prompts:
        after_s = took_s + takes_s
        if after_s + (int(after_s / room_s) + 1) * step_s <= due_s:
            num, took_s = num + 1, after_s
    return num, took_s


def best_step(
    rows: Sequence[RowRoom], prompts: Sequence[tuple[float, float]], *, step_s: float, least_s: float, most_s: float
) -> float:
    """How long the step may take: `least_s` protects all rows, `most_s` none; `step_s` is one of the rows alone."""
    rows = sorted(rows)
    tried = {least_s, most_s}
    index = 1
    while index < len(rows):  # without the 1, 2, 4, ... tightest
        if least_s < rows[index].step_s < most_s:
            tried.add(rows[index].step_s)
        index *= 2
    best_s, best = least_s, float("-inf")
    for limit_s in sorted(tried):
        if (room_s := limit_s - step_s) <= 0.0:
            continue
        num, took_s = num_in_time(prompts, step_s, room_s)
        num_steps = max(1.0, took_s / room_s)
        worth = WORTH * num
        for row in rows:
            if row.step_s >= limit_s:
                break
            # steps that may be so long will be: others come
            worth -= row.risk((limit_s - row.step_s) * min(num_steps, row.likely))
        if worth > best:
            best_s, best = limit_s, worth
    return best_s


def wins_more(win: float, rows: Iterable[RowRoom], later_s: float, num_tokens: int) -> bool:
    """Is a target that is won with the probability `win` worth `later_s` more in each of `num_tokens` steps?"""
    for row in rows:
        win -= row.risk(later_s * min(row.likely, num_tokens))
        if win <= 0.0:
            return False
    return win > 0.0
