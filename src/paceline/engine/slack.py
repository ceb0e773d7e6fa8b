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
from math import inf

from paceline.contracts.ports import CostModel, StepShape
from paceline.engine.request_state import NO_ROW, Phase, RequestState
from paceline.engine.settings import SchedulerSettings

CATCH_UP = 0.9  # of its target: what a step may take while a row is behind, so that it catches up
STEP_SHARE = 0.4  # of the tightest TTFT target asked for lately: who comes during a step waits for its end
WINDOW_S = 10.0  # lately
MOST_TARGETS = 16
PREFILL_PACE = 2.5  # a prompt takes so many times its own price, for the rows that decode beside it


class Slack:
    """Asks the cost model; keeps nothing but the pace of the step that is planned."""

    def __init__(self, settings: SchedulerSettings, cost: CostModel) -> None:
        self._settings = settings
        self._cost = cost
        self.limit_s = inf  # of the step planned last: how long it may take
        self.is_pacing = False  # and that left it fewer prompt positions
        self.num_paced = 0  # steps so far
        self._ttft: dict[float, float] = {}  # TTFT targets, and when one was asked for last

    def set_targets(self, state: RequestState) -> None:
        """Note what a new request is served by. A TPOT target that a row alone would miss asks nothing."""
        state.by_slack = True
        slo, cost = state.request.slo, self._cost
        if slo.tpot_s is not None and self.alone_ms(state) <= 1e3 * slo.tpot_s:
            state.tpot_s = slo.tpot_s
        prefill_s = PREFILL_PACE * cost.prefill_ms(state.known) / 1e3
        if slo.ttft_s is not None:
            state.due = state.arrival + slo.ttft_s
        if slo.e2e_s is not None:
            self._spread(state, slo.e2e_s, prefill_s)
        state.start_by = state.due - prefill_s

    def _spread(self, state: RequestState, e2e_s: float, prefill_s: float) -> None:
        """A target for the whole, as one for each token and one for the first: tokens get half of what there is to
        spare, in proportion to what they take alone. A limit that cannot be reached in time asks nothing."""
        alone_s = self.alone_ms(state) / 1e3
        left = state.limit - state.known
        times = e2e_s / (prefill_s + left * alone_s)
        if times > 1.0:
            tpot_s = alone_s * (1.0 + times) / 2
            state.tpot_s = min(state.tpot_s, tpot_s)
            state.due = min(state.due, state.arrival + e2e_s - left * tpot_s)

    def alone_ms(self, state: RequestState) -> float:
        """What a step takes that only makes this request's next token."""
        return self._cost.step_ms(decode_shape(1, state.known))

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

    def step_s(self, decodes: Sequence[RequestState], now: float) -> float:
        """How long the step may take for the sake of the rows that decode, and of who may come while it runs; inf: as
        long as it likes."""
        limit = self._rows_s(decodes, now)
        for ttft_s, last in self._ttft.items():
            if now - last <= WINDOW_S:
                limit = min(limit, STEP_SHARE * ttft_s)
        return limit

    def _rows_s(self, decodes: Sequence[RequestState], now: float) -> float:
        """How long the step may take for the sake of rows that can make their targets."""
        limit = inf
        hopeless: list[RequestState] | None = None
        for state in decodes:
            tpot = state.tpot_s
            if tpot == inf or state.row == NO_ROW or not state.timeline.chunks or state.is_lost(now):
                continue
            slack = state.token_due() - now
            if slack >= limit:
                continue
            if slack < CATCH_UP * tpot:
                if hopeless is None:
                    hopeless = self._hopeless(decodes, now)
                if state in hopeless:
                    continue
                slack = CATCH_UP * tpot
            limit = min(limit, slack)
        return limit

    def _hopeless(self, decodes: Sequence[RequestState], now: float) -> list[RequestState]:
        """Rows whose tokens would miss their target on average even if they alone decoded from now on, to their end."""
        step_s = self._cost.step_ms(shape_of(decodes)) / 1e3
        found = []
        for state in decodes:
            if state.tpot_s < inf and state.timeline.chunks and state.row != NO_ROW:
                left = state.limit - state.known
                if state.token_due() + (left - 1) * state.tpot_s < now + left * step_s:
                    found.append(state)
        return found

    def budget(self, decodes: Sequence[RequestState], num_cached: int, most: int, now: float) -> int:
        """Prompt positions beside these rows, of at most `most`; `num_cached`: those before the first of them."""
        self.limit_s = step_s = self.step_s(decodes, now)
        self.is_pacing = False
        if step_s == inf:
            return most
        least = min(most, self._settings.min_prefill_tokens)
        fit = self._cost.tokens_within(1e3 * step_s, shape_of(decodes), num_cached, at_most=most)
        self.is_pacing = fit < most
        self.num_paced += self.is_pacing
        return max(fit, least)

    def keeps_pace(self, running: Collection[RequestState], head: RequestState, now: float) -> bool:
        """Would all rows that can make their targets, and `head`, keep their pace with it as one more row? A late head
        has to leave room for lost rows as well: they would be left out of steps for nothing."""
        late = head.start_by < now
        tightest, context, num = head.tpot_s, head.known, 1
        for state in running:
            if state.is_lost(now):
                if not late:
                    continue
            elif state.tpot_s < tightest:
                tightest = state.tpot_s
            context += state.known
            num += 1
        return tightest == inf or num == 1 or self._cost.step_ms(decode_shape(num, context)) <= 1e3 * tightest

    def take_part(self, decodes: list[RequestState], now: float) -> list[RequestState]:
        """The rows that decode in this step: those that have missed their targets skip it where the others could not
        keep theirs beside them. The oldest stay in first."""
        lost = [state for state in decodes if state.is_lost(now)]
        if not lost:
            return decodes
        kept = [state for state in decodes if not state.is_lost(now)]
        step_s = self._rows_s(kept, now)
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
            start_by += PREFILL_PACE * done / 1e3
        late = start_by < now and not state.resumes
        return late, state.arrival if late else state.rank


def decode_shape(num_rows: int, context: int) -> StepShape:
    """One token for each of `num_rows` rows that hold `context` tokens together."""
    return StepShape(
        num_tokens=num_rows,
        num_rows=num_rows,
        num_sampled=num_rows,
        context_tokens=context,
        attention_pairs=context + num_rows,
    )


def shape_of(decodes: Sequence[RequestState]) -> StepShape:
    """The step of these rows alone."""
    return decode_shape(len(decodes), sum(state.planned for state in decodes))
