"""Decode rows that skip a step, so that the first token of a tenant below its part comes sooner.

A step takes as long as all its rows take. Where decoding rows are a large part of one, as on a CPU, a quiet tenant's
first token waits for the tokens of whoever floods the engine. Leaving those out of that one step costs them a step, and
the machine what every step costs whatever is in it. So it is done where the price says that it pays: the rows are worth
a tenth of the step that is left. No row is left out of two steps in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.contracts.decision import Kind, Reason
from paceline.contracts.ports import CostModel, StepShape
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.plan_columns import Selection
from paceline.engine.request_state import NO_ROW, RequestState
from paceline.engine.shares import Shares

WORTH = 0.1  # of the step without them


class GivingWay:
    """Whether rows were left out of the last step is all it remembers."""

    __slots__ = ("_cost", "_life", "gave_way")

    def __init__(self, cost: CostModel, life: Lifecycle) -> None:
        self._cost = cost
        self._life = life
        self.gave_way = False  # rows were left out of the last step

    def choose(self, selection: Selection, shares: Shares | None, now: float) -> None:
        """Take the rows that give way out of `selection.decodes`."""
        before, self.gave_way = self.gave_way, False
        first = None if shares is None or before else shares.first_token_due(selection.prefills)
        if shares is None or first is None:
            return
        decodes = [state for state in selection.decodes if state.row != NO_ROW]  # others are victims by now
        kept = [state for state in decodes if not shares.gives_way(state, first)]
        left_out = len(decodes) - len(kept)
        if not left_out:
            return
        without = self._ms(kept, selection)
        saved = self._ms(decodes, selection) - without
        if saved < WORTH * without:
            return
        self.gave_way = True
        selection.decodes = kept
        numbers = {"left_out": float(left_out), "saved_ms": saved}
        self._life.record(first, Kind.CHUNK, Reason.FIRST_TOKEN_FIRST, now, numbers)

    def _ms(self, decodes: Sequence[RequestState], selection: Selection) -> float:
        prefills = selection.prefills
        return self._cost.step_ms(
            StepShape(
                num_tokens=len(decodes) + sum(count for _, count in prefills),
                num_rows=len(decodes) + len(prefills),
                num_sampled=len(decodes) + len(prefills),
                context_tokens=sum(s.planned for s in decodes) + sum(s.planned for s, _ in prefills),
            )
        )
