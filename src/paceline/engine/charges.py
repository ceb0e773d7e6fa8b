"""What a step costs each tenant under the fair policy: its rows' shares of the predicted time, in picoseconds.

A decoding row pays an equal part of what a step of decoding rows takes, and for the context it holds; what the step
takes beyond that is paid by the prompts in it, by positions. So a tenant of long answers, whose every token is a row's
share of reading the weights, does not pass as cheap beside one of long prompts, whose positions are computed many at
once. Whole numbers, so that many equal steps add up to the same in any grouping (`horizon`).
"""

from __future__ import annotations

from paceline.contracts.ports import CostModel, decoding_shape
from paceline.engine.plan_columns import RowColumns
from paceline.engine.queue import WaitingQueue
from paceline.engine.request_state import RequestState

_PS_PER_MS = 1e9
_CONTEXT = 1024  # tokens a row at which the price of context is taken


class Charges:
    """Asks the cost model twice a step."""

    def __init__(self, cost: CostModel, queue: WaitingQueue) -> None:
        self._cost = cost
        self._queue = queue

    def charge(self, rows: RowColumns, num_decodes: int, est_ms: float) -> None:
        """The rows of a plan: decoding ones first, then chunks of prompts."""
        states, counts, starts = rows.states, rows.counts, rows.starts
        spent = 0
        if num_decodes:
            row_ps, token_ps = self._prices(num_decodes)
            for index in range(num_decodes):
                amount = row_ps * counts[index] + token_ps * starts[index]
                spent += amount
                self._queue.charge(states[index], amount)
        if num_decodes < len(states):
            positions = sum(counts[num_decodes:])
            each = max(1, (round(est_ms * _PS_PER_MS) - spent) // positions)
            for index in range(num_decodes, len(states)):
                self._queue.charge(states[index], each * counts[index])

    def charge_run(self, states: list[RequestState], num: int) -> None:
        """`num` steps of these rows alone, of which none has been counted in `planned` yet."""
        row_ps, token_ps = self._prices(len(states))
        grown = num * (num - 1) // 2
        for state in states:
            self._queue.charge(state, num * row_ps + token_ps * (num * state.planned + grown))

    def _prices(self, num_rows: int) -> tuple[int, int]:
        """Picoseconds for a decoding row among so many, and for each token of context it holds."""
        empty_ms = self._cost.step_ms(decoding_shape(num_rows, 0))
        full_ms = self._cost.step_ms(decoding_shape(num_rows, _CONTEXT * num_rows))
        row_ps = max(1, round(empty_ms * _PS_PER_MS / num_rows))
        return row_ps, max(0, round((full_ms - empty_ms) * _PS_PER_MS / (_CONTEXT * num_rows)))
