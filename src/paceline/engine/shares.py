"""Shares of tenants under the fair policy: who is about, and who of them leaves room for the others.

The queue's order says who goes next. That does not help a tenant that comes while another one has all rows, or while a
long step of another's prompts runs. So as long as several tenants are about, one that runs more than its equal part
leaves a few rows free, and its prompts get a portion of a step. When those rows are taken too, a tenant below its part
gets a row of the one furthest above: its youngest is preempted, and finds its blocks in the prefix cache when it comes
back. Rows move towards equal parts only; under steady traffic none moves back.

What a quiet tenant then waits beside a flooding one is the rest of the step it came in, and what the flood's decode
rows add to its own first steps (tests/laws/test_fairness.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from paceline.engine.request_state import NO_ROW, RequestState

WINDOW_S = 10.0  # a tenant that sent nothing for so long is not about any more
_MOST = 32  # tenants looked at in a step, those that sent something last; more would only make shares smaller
_ROWS_PER_FREE = 16  # one row in so many is left free; none of fewer than half of that
_PORTION = 4  # one part in so many of a step's prompt positions

Who = tuple[int, str]
"""(priority, tenant)"""


class Arrivals:
    """When each tenant last sent something, in each class. The engine's clock."""

    def __init__(self) -> None:
        self._last: OrderedDict[Who, float] = OrderedDict()

    def note(self, state: RequestState) -> None:
        who = (state.priority, state.tenant)
        self._last[who] = max(state.arrival, self._last.get(who, 0.0))
        self._last.move_to_end(who)

    def about(self, now: float) -> list[Who]:
        """Those that sent something lately, the last one first."""
        last = self._last
        while last and next(iter(last.values())) < now - WINDOW_S:
            last.popitem(last=False)
        return [who for who, _ in zip(reversed(last), range(_MOST), strict=False)]


class Shares:
    """The shares of one step. `debt`: what a tenant was served in a class; `budget`: prompt positions of the step."""

    def __init__(
        self,
        about: list[Who],
        running: Collection[RequestState],
        debt: Callable[[int, str], float],
        *,
        max_rows: int,
        budget: int,
    ) -> None:
        assert about
        self._running = running
        self._rows: dict[str, int] = {}
        self._num_rows = 0
        for state in running:
            self.note_row(state)
        self._num_tenants = len(dict.fromkeys(tenant for _, tenant in about))
        # of equals the one that came last: it was served least lately
        self._least_served = min(about, key=lambda who: (who[0], debt(*who)))
        self._max_rows = max_rows
        self._free_rows = (max_rows + _ROWS_PER_FREE // 2) // _ROWS_PER_FREE
        self._portion = max(1, budget // _PORTION)
        self._least_served_spent = 0

    def row_limit(self, state: RequestState) -> int:
        """Rows that may be taken once `state` is admitted."""
        rows = self._rows.get(state.tenant, 0) + 1
        return self._max_rows - self._free_rows if rows * self._num_tenants > self._max_rows else self._max_rows

    def victim_for(self, state: RequestState, spared: Collection[RequestState]) -> RequestState | None:
        """Whose row `state` may have when none is left: the youngest of the tenant that runs the most, of the same
        class, if that is more than an equal part and `state` stays within its own. None: nobody's. `spared`: those
        admitted in this very step."""
        if (self._rows.get(state.tenant, 0) + 1) * self._num_tenants > self._max_rows:
            return None
        victim: RequestState | None = None
        best: tuple[int, float, int] | None = None
        for other in self._running:
            rows = self._rows.get(other.tenant, 0)
            if other.priority != state.priority or other.tenant == state.tenant:
                continue
            if rows * self._num_tenants <= self._max_rows or other in spared:
                continue
            rank = (rows, other.arrival, other.request_id)
            if best is None or rank > best:
                victim, best = other, rank
        return victim

    def room(self, state: RequestState, left: int) -> int:
        """Of `left` prompt positions, those it may have. In a step in which the least served computes its prompt the
        others leave it alone: every position would make that first token later."""
        if not self._must_share(state):
            return left
        return 0 if self._least_served_spent else min(left, self._portion)

    def spend(self, state: RequestState, num_tokens: int) -> None:
        """It got so many. Before `note_row`, if it was just admitted."""
        if (state.priority, state.tenant) == self._least_served:
            self._least_served_spent += num_tokens
        elif self._must_share(state):
            self._portion -= num_tokens

    def first_token_due(self, prefills: Sequence[tuple[RequestState, int]]) -> RequestState | None:
        """The request of the least served tenant whose prompt, of these chunks, ends in this step."""
        for state, count in prefills:
            if state.known > state.num_prompt or state.row == NO_ROW:
                continue  # it had its first token, or is a victim by now
            if (state.priority, state.tenant) == self._least_served and state.planned + count >= state.known:
                return state
        return None

    def gives_way(self, state: RequestState, first: RequestState) -> bool:
        """Whether its next token may be later for the first one of `first`."""
        return state.priority >= first.priority and self._must_share(state)

    def note_row(self, state: RequestState) -> None:
        """It has a row."""
        self._rows[state.tenant] = self._rows.get(state.tenant, 0) + 1
        self._num_rows += 1

    def _must_share(self, state: RequestState) -> bool:
        """Its tenant runs more than an equal part, and another is to be served before it."""
        if (state.priority, state.tenant) == self._least_served:
            return False
        return self._rows.get(state.tenant, 0) * self._num_tenants > self._num_rows
