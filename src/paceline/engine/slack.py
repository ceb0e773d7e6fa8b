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

from collections.abc import Collection, Sequence
from math import inf

from paceline.contracts.ports import CostModel, StepShape
from paceline.engine.request_state import NO_ROW, RequestState
from paceline.engine.settings import SchedulerSettings

CATCH_UP = 0.9  # of its target: what a step may take while a row is behind, so that it catches up
STEP_SHARE = 0.4  # of the tightest TTFT target asked for lately: who comes during a step waits for its end
WINDOW_S = 10.0  # lately
MOST_TARGETS = 16
PREFILL_PACE = 1.5  # a prompt takes so many times its own price, for the rows that decode beside it


class Slack:
    """Asks the cost model; keeps nothing but the pace of the step that is planned."""

    def __init__(self, settings: SchedulerSettings, cost: CostModel) -> None:
        self._settings = settings
        self._cost = cost
        self.limit_s = inf  # of the step planned last: how long it may take
        self.is_pacing = False  # and that left it fewer prompt positions
        self._ttft: dict[float, float] = {}  # TTFT targets, and when one was asked for last

    def set_targets(self, state: RequestState) -> None:
        """Note what a new request is served by. A TPOT target that a row alone would miss asks nothing."""
        state.by_slack = True
        slo, cost = state.request.slo, self._cost
        if slo.tpot_s is not None and self.alone_ms(state) <= 1e3 * slo.tpot_s:
            state.tpot_s = slo.tpot_s
        if slo.ttft_s is not None:
            state.start_by = state.arrival + slo.ttft_s - PREFILL_PACE * cost.prefill_ms(state.known) / 1e3

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
        limit = inf
        for ttft_s, last in self._ttft.items():
            if now - last <= WINDOW_S:
                limit = min(limit, STEP_SHARE * ttft_s)
        hopeless: list[RequestState] | None = None
        for state in decodes:
            tpot = state.tpot_s
            if tpot == inf or state.row == NO_ROW or not state.timeline.chunks:
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
        return max(fit, least)

    def keeps_pace(self, running: Collection[RequestState], head: RequestState) -> bool:
        """Would all rows that can make their target, and `head`, still make it with `head` as one more row?"""
        tightest = head.tpot_s
        context = head.known
        for state in running:
            context += state.known
            if state.tpot_s < tightest:
                tightest = state.tpot_s
        if tightest == inf or not running:
            return True
        num = len(running) + 1
        return self._cost.step_ms(decode_shape(num, context)) <= 1e3 * tightest

    def urgency(self, state: RequestState, now: float) -> tuple[bool, float]:
        """Sorts a prompt that has begun, or the head of the queue: those in time by latest start, then the late."""
        start_by = state.start_by
        if state.phase.value and start_by < inf and not state.resumes:  # part of it is computed
            done = self._cost.prefill_ms(state.known) - self._cost.prefill_ms(state.todo, state.planned)
            start_by += PREFILL_PACE * done / 1e3
        late = start_by == inf or (start_by < now and not state.resumes)
        return late, state.arrival if late else start_by


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
