"""What latency targets leave room for: how long a step may take, whether one more row keeps the pace, who is urgent.

*Slack* is the time until something is due, less what it still takes. A row's next token is due when the mean of its
tokens so far would be its target (TPOT is a mean, so a row that is ahead of it may wait); a first token is due when its
TTFT target says. Prices are the cost model's. An error of theirs costs the next step its slack and is made up for
there, so the value of an estimate is used here, not an end of its interval.

The rules protect what runs: a step takes in as many prompt positions as the tightest row allows, and a request becomes
a row only if all keep their pace with it. Who cannot make its target any more is protected no longer, and gets what is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf, nextafter

from paceline.contracts.ports import CostModel, StepShape, decoding_shape, joined, prefill_shape
from paceline.engine.lately import WINDOW_S, Share, UsualRows
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.prospects import Prospects
from paceline.engine.request_state import NO_ROW, Phase, RequestState
from paceline.engine.settings import SchedulerSettings
from paceline.engine.weighing import UNSURE, RowRoom, best_step, num_in_time, wins_more

AIM = 0.99  # of a TPOT target: rows that are led along its edge would fall over it by a little, all of them at once
CATCH_UP = 0.9  # of its target: what a step may take while a row is behind, so that it catches up
SPEND = 0.15  # of what a row will get ahead with the tokens it will likely still make: a step may spend so much of it
LIKELY = 64  # tokens; or as many more as it has made, if those are more
STEP_SHARE = 0.4  # of the tightest TTFT target asked for lately: who comes during a step waits for its end
MOST_PROMPTS = 0.9  # of the time: rows get some of it in any case
MOST_TARGETS = 16
PREFILL_PACE = 2.5  # a prompt takes so many times its own price, for the rows that decode beside it
USUAL = 0.5  # of what is weighed, rows are taken to become as many as lately; half now, half then


class Slack:
    """Asks the cost model; keeps nothing but the pace of the step that is planned."""

    def __init__(self, settings: SchedulerSettings, cost: CostModel, life: Lifecycle, prospects: Prospects) -> None:
        self._prospects = prospects
        self._life = life
        self._lengths = prospects.lengths
        self._settings = settings
        self._cost = cost
        self.limit_s = inf  # of the step planned last: how long it may take
        self.is_pacing = False  # and that left it fewer prompt positions
        self.num_paced = 0  # steps so far
        self.prompts = Share()  # of the time, that went into prompts
        self._usual = UsualRows()
        self._ttft: dict[float, float] = {}  # TTFT targets, and when one was asked for last

    def set_targets(self, state: RequestState) -> None:
        """Note what a new request is served by. A TPOT target that a row alone would miss asks nothing."""
        state.by_slack = True
        slo, cost = state.request.slo, self._cost
        if slo.tpot_s is not None and self.alone_ms(state) <= 1e3 * slo.tpot_s:
            state.tpot_s = AIM * slo.tpot_s
        state.prompt_s = cost.prefill_ms(state.known) / 1e3
        if slo.ttft_s is not None:
            state.due = state.late_after = state.arrival + slo.ttft_s
        if slo.e2e_s is not None:
            self._spread(state, slo.e2e_s, PREFILL_PACE * state.prompt_s)
        state.start_by = state.late_after - state.prompt_s

    def _spread(self, state: RequestState, e2e_s: float, prefill_s: float) -> None:
        """A target for the whole, as one for each token and one for the first: tokens get half of what there is to
        spare, in proportion to what they take alone. A limit that cannot be reached in time asks nothing."""
        alone_s = self.alone_ms(state) / 1e3
        left = self._lengths.left(state)
        times = e2e_s / (prefill_s + left * alone_s)
        if times > 1.0:
            tpot_s = alone_s * (1.0 + times) / 2
            state.tpot_s = min(state.tpot_s, tpot_s)
            state.due = min(state.due, state.arrival + e2e_s - left * tpot_s)
            state.late_after = min(state.late_after, state.arrival + e2e_s - left * alone_s)

    def _spread_rest(self, state: RequestState, now: float) -> None:
        """If it begins now, its tokens have all of what is left of a target for the whole."""
        e2e_s = state.request.slo.e2e_s
        if e2e_s is None or state.resumes or not (left := self._lengths.left(state)):
            return
        prefill_s = PREFILL_PACE * state.prompt_s
        rest_s = state.arrival + e2e_s - now - prefill_s
        tpot_s = rest_s * (1.0 - min(MOST_PROMPTS, self.prompts.share(now))) / left
        if 1e3 * tpot_s > self.alone_ms(state):
            asked = state.request.slo.tpot_s
            state.tpot_s = tpot_s if asked is None else min(AIM * asked, tpot_s)

    def alone_ms(self, state: RequestState) -> float:
        """What a step takes that only makes this request's next token."""
        return self._cost.step_ms(decoding_shape(1, state.known))

    def note(self, state: RequestState, now: float) -> None:
        """It was taken in: others of its kind may come."""
        ttft_s = state.request.slo.ttft_s
        if ttft_s is not None:
            if ttft_s not in self._ttft:
                self._forget(now)
            self._ttft[ttft_s] = now

    def _forget(self, now: float) -> None:
        """Targets that nobody asked for lately."""
        self._ttft = {ttft_s: last for ttft_s, last in self._ttft.items() if now - last <= WINDOW_S}
        while len(self._ttft) >= MOST_TARGETS:
            del self._ttft[max(self._ttft)]

    def step_s(self, decodes: Sequence[RequestState], begun: Sequence[RequestState], now: float) -> float:
        """How long the step may take for the sake of the rows that decode, and of who may come while it runs; inf: as
        long as it likes. `begun`: prompts."""
        most_s = self._most_s(now)
        rows = self._with_targets(decodes, now)
        if not rows:
            return most_s
        step_s, later_s = self._pace(decodes, now)
        limit_s = self._rows_s(rows, step_s, later_s, now)
        if limit_s < most_s and self._may_be_late(begun, limit_s, step_s, now):
            _, later_s = self._pace(decodes, now, usual=USUAL)
            rooms = [self._room(state, self._lengths.left(state), step_s, later_s, now) for state in rows]
            full_s = step_s + self._cost.prefill_ms(self._settings.max_num_batched_tokens) / 1e3
            prompts = self._prospects.left(begun, now)
            limit_s = best_step(rooms, prompts, step_s=step_s, least_s=limit_s, most_s=min(most_s, full_s))
        return min(limit_s, most_s)

    def _most_s(self, now: float) -> float:
        """How long a step may take for the sake of who may come while it runs."""
        most_s = inf
        for ttft_s, last in self._ttft.items():
            if now - last <= WINDOW_S:
                most_s = min(most_s, STEP_SHARE * ttft_s)
        return most_s

    def _with_targets(self, decodes: Sequence[RequestState], now: float) -> list[RequestState]:
        """The rows that can still make a target for their tokens, and have begun to."""
        return [
            state
            for state in decodes
            if state.tpot_s != inf and state.row != NO_ROW and state.timeline.chunks and not state.is_lost(now)
        ]

    def _may_be_late(self, begun: Sequence[RequestState], limit_s: float, step_s: float, now: float) -> bool:
        """Might a prompt be late in steps that take so long? Asked by the one that is due first, as if all that wait
        went before it: that looks at nobody else."""
        queue, by = self._life.queue, self._prospects.by
        if not begun and len(self._life.running) >= self._settings.max_num_seqs:
            return False  # no prompt can go on in this step
        prompts = [state for state in begun if now <= by(state) < inf]
        head = queue.peek()
        if head is not None and now <= by(head) < inf:
            prompts.append(head)
        if not prompts:
            return False
        first = min(prompts, key=lambda state: (by(state), state.request_id))
        takes_s = self._cost.prefill_ms(first.todo + queue.num_tokens, first.planned) / 1e3
        room_s = limit_s - step_s
        return room_s <= 0.0 or not num_in_time([(takes_s, by(first) - now)], step_s, room_s)[0]

    def _room(self, state: RequestState, left: int, step_s: float, later_s: float, now: float) -> RowRoom:
        """What a row leaves to prompts, when the `left` tokens it will likely still make take `later_s` each."""
        likely, slack_s = _likely(state, left), state.token_due() - now
        spare_s = slack_s + (likely - 1) * state.tpot_s - likely * later_s
        own_s = max(slack_s, CATCH_UP * state.tpot_s, step_s + SPEND * spare_s)
        return RowRoom(own_s, likely, spare_s, UNSURE * likely * later_s)

    def _rows_s(self, rows: Sequence[RequestState], step_s: float, later_s: float, now: float) -> float:
        """How long the step may take for the sake of rows that can make their targets; `step_s`, `later_s`: `_pace`."""
        limit = inf
        for state in rows:
            tpot, slack = state.tpot_s, state.token_due() - now
            if slack >= limit:
                continue
            left = self._lengths.left(state)
            if slack + (left - 1) * tpot < left * step_s:
                continue  # it would miss its target even if these rows alone decoded from now on, to its limit
            limit = min(limit, self._room(state, left, step_s, later_s, now).step_s)
        return limit

    def _pace(self, decodes: Sequence[RequestState], now: float, *, usual: float = 0.0) -> tuple[float, float]:
        """Seconds of a step of these rows, and of one when those that wait now are rows as well, and two more, beside
        as many prompts as lately. `usual`: so much of what those are more than there were lately is left out."""
        context = sum([state.planned for state in decodes])
        num, life = len(decodes), self._life
        more = min(self._settings.max_num_seqs, len(life.running) + life.queue.num_requests + 2)
        if usual and 0.0 < (mean := self._usual.mean(now)) < more:
            more = max(1, round(more - usual * (more - mean)))
        now_ms = self._cost.step_ms(decoding_shape(num, context))
        later_ms = self._cost.step_ms(decoding_shape(more, context * more // num))
        return now_ms / 1e3, later_ms / 1e3 / (1.0 - min(MOST_PROMPTS, self.prompts.share(now)))

    def budget(
        self, decodes: Sequence[RequestState], begun: Sequence[RequestState], most: int, now: float, *, most_s: float
    ) -> int:
        """Prompt positions beside these rows, of at most `most`. `begun`: prompts; the next of the queue are looked at
        as well. `most_s`: how long the step may take for the sake of first tokens that were held back."""
        self._usual.note(len(decodes), now)
        num_cached = begun[0].planned if begun else 0
        self.is_pacing = False
        surely_s = self._surely_s(decodes, most_s, now)
        full = joined(shape_of(decodes), prefill_shape(most, num_cached))
        if surely_s == inf or self._cost.step_ms(full) <= 1e3 * surely_s:
            self.limit_s = surely_s
            return most
        self.limit_s = step_s = min(most_s, self.step_s(decodes, begun, now))
        if step_s == inf:
            return most
        least = min(most, self._settings.min_prefill_tokens)
        fit = self._cost.tokens_within(1e3 * step_s, shape_of(decodes), num_cached, at_most=most)
        self.is_pacing = fit < most
        self.num_paced += self.is_pacing
        return max(fit, least)

    def _surely_s(self, decodes: Sequence[RequestState], most_s: float, now: float) -> float:
        """`step_s` is this at the least, for one look at each row: most steps are shorter than anybody feels."""
        tpot_s = min([state.tpot_s for state in decodes], default=inf)
        return min(most_s, CATCH_UP * tpot_s, self._most_s(now))

    def note_prompts(self, prefills: Sequence[tuple[RequestState, int]], now: float) -> None:
        """These chunks are computed in a step that begins now."""
        self.prompts.note(now, sum(self._cost.prefill_ms(count, state.planned) for state, count in prefills) / 1e3)

    def keeps_pace(self, running: Collection[RequestState], head: RequestState, now: float) -> bool:
        """Would all rows that can make their targets, and `head`, keep their pace with it as one more row? A late head
        has to leave room for lost rows as well: they would be left out of steps for nothing."""
        self._spread_rest(head, now)
        late = head.start_by < now
        rows = [state for state in running if late or not state.is_lost(now)]
        if not rows:
            return True
        context = sum([state.known for state in rows])
        now_s = self._cost.step_ms(decoding_shape(len(rows), context)) / 1e3
        then_s = self._cost.step_ms(decoding_shape(len(rows) + 1, context + head.known)) / 1e3
        keeps = late or then_s <= head.tpot_s
        if keeps and then_s <= min([state.tpot_s for state in rows]):
            return True  # what each affords is its target, or more
        if keeps and all(state.is_lost(now) or then_s <= self._affordable_s(state, now_s, now) for state in rows):
            return True
        if not late and self._wins(rows, head, now_s, then_s, now):
            return True
        if not late and then_s > head.tpot_s and head.request.slo.e2e_s is not None and not head.resumes:
            head.start_by = nextafter(now, -inf)  # what is left of a target for the whole only gets less: it is late
        return False

    def _wins(
        self, running: Sequence[RequestState], head: RequestState, now_s: float, then_s: float, now: float
    ) -> bool:
        """It would be late if it did not become a row now: is its target likely worth more than what it takes from the
        others? `now_s`, `then_s`: a step without it, and with it."""
        ends = now + then_s + head.prompt_s
        by = self._prospects.by(head)
        if head.resumes or not ends <= by < ends + then_s:
            return False
        _, later_s = self._pace(running, now, usual=USUAL)
        likely, win = _likely(head, self._lengths.left(head)), 1.0
        if head.tpot_s < inf:
            ahead = (head.tpot_s - later_s) / later_s
            win = min(1.0, max(0.0, 0.5 + ahead / (2.0 * UNSURE)))
        rows, left = self._with_targets(running, now), self._lengths.left
        rooms = [self._room(state, left(state), now_s, later_s, now) for state in rows]
        return wins_more(win, rooms, then_s - now_s, likely)

    def _affordable_s(self, state: RequestState, now_s: float, now: float) -> float:
        """Seconds that the coming tokens of a row may take: its target, and an even part of what it is ahead. inf: it
        would miss its target even if steps stayed as they are, `now_s`."""
        tpot = state.tpot_s
        if tpot == inf or not state.timeline.chunks:
            return tpot
        slack, left = state.token_due() - now, self._lengths.left(state)
        if slack + (left - 1) * tpot < left * now_s:
            return inf
        return tpot + max(0.0, slack - tpot) / _likely(state, left)

    def take_part(self, decodes: list[RequestState], now: float) -> list[RequestState]:
        """The rows that decode in this step: those that have missed their targets skip it where the others could not
        keep theirs beside them. The oldest stay in first."""
        lost = [state for state in decodes if state.is_lost(now)]
        if not lost:
            return decodes
        kept = [state for state in decodes if not state.is_lost(now)]
        rows = self._with_targets(kept, now)
        step_s = self._rows_s(rows, *self._pace(kept, now), now) if rows else inf
        if step_s == inf:
            return decodes
        low, high = 0, len(lost)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._cost.step_ms(shape_of([*kept, *lost[:middle]])) <= 1e3 * step_s
            low, high = (middle, high) if fits else (low, middle - 1)
        left_out = set(map(id, lost[low:]))
        return [state for state in decodes if id(state) not in left_out]

    def sort(self, begun: list[RequestState], debt: Callable[[RequestState], float], now: float) -> None:
        """Prompts that have begun, by class, tenant and urgency."""
        begun.sort(key=lambda s: (s.priority, debt(s), self.urgency(s, now), s.arrival, s.request_id))

    def urgency(self, state: RequestState, now: float) -> tuple[bool, float]:
        """Sorts prompts that have begun, and the head of the queue: those in time by when they are due, then the
        late."""
        start_by = state.start_by
        if state.phase is Phase.RUNNING and start_by < inf and not state.resumes:  # part of it is computed
            done = self._cost.prefill_ms(state.known) - self._cost.prefill_ms(state.todo, state.planned)
            start_by += done / 1e3
        late = start_by < now and not state.resumes
        return late, state.arrival if late else state.rank


def _likely(state: RequestState, left: int) -> int:
    """Tokens to count on, of `left` that it will likely still make."""
    return max(1, min(left, max(state.output_tokens, LIKELY)))


def shape_of(decodes: Sequence[RequestState]) -> StepShape:
    """The step of these rows alone."""
    return decoding_shape(len(decodes), sum(state.planned for state in decodes))
