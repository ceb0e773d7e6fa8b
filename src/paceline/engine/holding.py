"""First tokens that wait until they are due, where that wins another prompt its target.

A TPOT target counts from the first token on. A prompt that draws its first token long before it is due becomes a row
that has to keep its pace from then on, and every other prompt is computed beside it, at a part of the speed. So its
last position is held back while, by the prices, some other prompt would be late beside the new row and in time without
it, and until its own first token is nearly due. It loses nothing by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from paceline.contracts.decision import Kind, Reason
from paceline.contracts.ports import CostModel, decoding_shape
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.prospects import Prospects
from paceline.engine.request_state import RequestState

SURE = 0.9  # of the time until a first token is due: prices err, and what is held back must not be late for it


class Holding:
    """Decides for each step who holds the last position of its prompt back; keeps nothing but how long the step that
    is planned may take."""

    def __init__(self, cost: CostModel, life: Lifecycle, prospects: Prospects) -> None:
        self._cost = cost
        self._life = life
        self._prospects = prospects
        self.limit_s = inf  # of the step that is planned, for the sake of first tokens that were held back

    def choose(self, decodes: list[RequestState], begun: Sequence[RequestState], now: float) -> list[RequestState]:
        """The rows with one position to go that go on in a step that begins at `now`."""
        self.limit_s = inf
        firsts = [state for state in decodes if can_hold(state)]
        if not firsts:
            return decodes
        all_s = self._step_s(decodes)
        held = {id(state) for state in firsts if SURE * (state.due - now) > 2.0 * all_s}
        if held:
            goes_on = [state for state in decodes if id(state) not in held]
            stays = [state for state in firsts if id(state) in held]
            if self._prospects.gains(begun, goes_on, stays, now):
                decodes = goes_on
            else:
                held.clear()
        for state in firsts:  # a step may take until the first of them is due, or must begin
            left_s = SURE * (state.due - now) - (all_s if id(state) in held else 0.0)
            if left_s > 0.0:
                self.limit_s = min(self.limit_s, left_s)
        return decodes

    def hold_back(
        self,
        prefills: list[tuple[RequestState, int]],
        decodes: Sequence[RequestState],
        begun: Sequence[RequestState],
        now: float,
    ) -> None:
        """Take the last position off the prompts that this step would finish, and that need not be yet."""
        ends = [index for index, (state, count) in enumerate(prefills) if 1 < count == state.todo and can_hold(state)]
        if not ends:
            return
        after = now + self._step_s(decodes)
        after += sum([self._cost.prefill_ms(count, state.planned) for state, count in prefills]) / 1e3
        all_s = self._step_s([*decodes, *(prefills[index][0] for index in ends)])
        ends = [index for index in ends if SURE * (prefills[index][0].due - after) > 2.0 * all_s]
        goes_on = {state.request_id for state, count in prefills if count < state.todo}
        rest = [state for state in begun if state.request_id not in {s.request_id for s, _ in prefills}]
        rest += [state for state, _ in prefills if state.request_id in goes_on]
        if not ends or not self._prospects.gains(rest, decodes, [prefills[index][0] for index in ends], after):
            return
        for index in ends:
            state, count = prefills[index]
            prefills[index] = (state, count - 1)
            numbers = {"due_ms": 1e3 * (state.due - now)}
            self._life.record(state, Kind.CHUNK, Reason.FIRST_TOKEN_HELD, now, numbers)

    def _step_s(self, rows: Sequence[RequestState]) -> float:
        return self._cost.step_ms(decoding_shape(len(rows), sum([state.planned for state in rows]))) / 1e3


def can_hold(state: RequestState) -> bool:
    """Has it a first token to come, a time when that is due, and a target that counts from then on?"""
    return (
        state.due < inf
        and state.by_slack
        and not state.timeline.chunks
        and not state.preemptions
        and state.request.slo.tpot_s is not None
    )
