"""Which prompts can be in time, by the prices: those that have begun and the next of the queue, by when they are due.

Prompts share a machine with the rows that decode: those take what their targets ask for, prompts the rest. So beside
rows whose step takes a share `s` of their TPOT target, a prompt takes 1 / (1 - s) times its own price (`pace`).

When not all can be in time, somebody will be late, and the fewest are when it is the longest (Moore, "An n job, one
machine sequencing algorithm for minimizing the number of late jobs", 1968): `cut`. By due time alone everybody gets a
part of the time, and many are late by little.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, nextafter

from paceline.contracts.ports import CostModel, decoding_shape
from paceline.engine.lengths import Lengths
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.request_state import NO_ROW, RequestState
from paceline.engine.settings import SchedulerSettings

NEAREST = 32  # so many of those that wait are looked at
MOST_ROWS = 0.9  # of the time: prompts get some of it in any case
HIT_WEIGHT = 1 / 8  # of the newest prompt in the mean of how much was found in the cache


class Prospects:
    """Looks at no more than `NEAREST` of those that wait, and at the queue only when it changed."""

    def __init__(self, settings: SchedulerSettings, cost: CostModel, life: Lifecycle) -> None:
        self._most = settings.max_num_batched_tokens
        self._cost = cost
        self._life = life
        self.lengths = Lengths()
        self._token_s = 0.0  # what a token takes beside the rows of now
        self._fresh = 1.0  # of a prompt, what is not found in the cache: a mean over those that began lately
        self._seen: tuple[int, int] | None = None  # head and arrivals when the queue was cut last

    def note(self, admits: Sequence[RequestState]) -> None:
        """These prompts begin: how much of them was in the cache."""
        for state in admits:
            if state.kv is not None and not state.resumes:
                self._fresh += HIT_WEIGHT * (1.0 - state.kv.num_cached_tokens / state.known - self._fresh)

    def look(self, rows: Sequence[RequestState]) -> None:
        """These rows decode: what a token takes as one of them."""
        num = len(rows)
        context = sum([state.planned for state in rows])
        self._token_s = self._cost.step_ms(decoding_shape(num + 1, context * (num + 1) // max(1, num))) / 1e3

    def by(self, state: RequestState) -> float:
        """Until when its first token has to be there: by its target, and early enough for one for the whole at the pace
        of now. inf: any time."""
        e2e_s = state.request.slo.e2e_s
        if e2e_s is None or state.late_after == inf:
            return state.late_after
        return min(state.late_after, state.arrival + e2e_s - self.lengths.left(state) * self._token_s)

    def left(self, begun: Sequence[RequestState], now: float) -> list[tuple[float, float]]:
        """Seconds that those prompts still take that could be in time, and until when from now they are due; those due
        first first."""
        return [(self._left_s(state), self.by(state) - now) for state in self._in_time(begun, now)]

    def cut(self, begun: Sequence[RequestState], rows: Sequence[RequestState], now: float, *, begins: float) -> None:
        """Of those that are next, let as many be late as have to, the longest: they go behind, from `now` on. `begins`:
        when the step does that is planned. Looked at when one of them could become a row: what is found depends on
        when one looks, and a run of steps looks at nothing while all rows are taken."""
        if len(self._life.running) >= self._life.num_rows:
            return
        queue = self._life.queue
        head = queue.peek()
        if head is None or self._seen == (seen := (head.request_id, queue.num_pushed)):
            return
        self._seen = seen
        prompts = self._in_time(begun, begins)
        if len(prompts) < 2:
            return
        pace, end = self.pace(rows, begins), begins
        chosen: list[tuple[float, float, int, RequestState]] = []  # of those that wait, the longest first
        for state in prompts:
            takes_s = pace * self._left_s(state)
            end += takes_s
            if state.row == NO_ROW and not state.resumes:
                heappush(chosen, (-takes_s, -self.by(state), -state.request_id, state))
            if end > self.by(state) and chosen:
                saved_s, _, _, late = heappop(chosen)
                end += saved_s
                late.start_by = nextafter(now, -inf)
        if queue.peek() is not head:
            self._seen = None

    def gains(
        self, begun: Sequence[RequestState], rows: Sequence[RequestState], more: Sequence[RequestState], now: float
    ) -> bool:
        """Would a prompt be late if `more` decoded beside it as well as `rows`, and in time if they did not?"""
        prompts = self._in_time(begun, now)
        if not prompts:
            return False
        pace, slower = self.pace(rows, now), self.pace([*rows, *more], now)
        took_s = 0.0  # at the prompts' own prices
        for state in prompts:
            takes_s = self._left_s(state)
            if now + pace * (took_s + takes_s) > self.by(state):
                continue
            took_s += takes_s
            if now + slower * took_s > self.by(state):
                return True
        return False

    def pace(self, rows: Sequence[RequestState], now: float) -> float:
        """How many times its own price a prompt takes beside these rows; steps of prompts alone have a fixed part."""
        full_ms = self._cost.prefill_ms(self._most)
        alone = 1.0 + self._cost.step_ms(decoding_shape(1, 0)) / full_ms if full_ms > 0.0 else 1.0
        rows = [state for state in rows if state.tpot_s != inf and not state.is_lost(now)]
        if not rows:
            return alone
        step_ms = self._cost.step_ms(decoding_shape(len(rows), sum([state.planned for state in rows])))
        target_ms = 1e3 * min([state.tpot_s for state in rows])
        return max(alone, 1.0 / (1.0 - min(MOST_ROWS, step_ms / target_ms)))

    def _in_time(self, begun: Sequence[RequestState], now: float) -> list[RequestState]:
        """Prompts that could still be in time if they were alone, by when they are due."""
        prompts = [state for state in begun if now < self.by(state) < inf]
        for state in self._life.queue.nearest(NEAREST):
            if now <= state.start_by and now < self.by(state) < inf:
                prompts.append(state)
        prompts.sort(key=lambda state: (self.by(state), state.arrival, state.request_id))
        return prompts

    def _left_s(self, state: RequestState) -> float:
        if state.row == NO_ROW:
            return self._fresh * state.prompt_s
        return self._cost.prefill_ms(state.todo, state.planned) / 1e3
