"""A quick no: a request whose class says so is not taken in when its first token would surely miss its target.

The prediction is the cost model's, from a look at what runs and what goes before it in the queue. It errs, so the lower
end of its interval is compared: who might be in time is taken in. What it cannot see makes it err towards taking in
(rows that are slow to end, requests of a higher class still to come) or towards refusing (a prefix that is cached).
"""

from __future__ import annotations

from paceline.contracts.decision import Decision, Kind, Reason
from paceline.contracts.ports import CostModel, EngineSnapshot
from paceline.engine.decisions import DecisionRing
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.request_state import RequestState
from paceline.engine.settings import SchedulerSettings
from paceline.errors import TooLateError


class Lateness:
    """Looks at everybody who waits, once for each request that asks to be refused."""

    __slots__ = ("_cost", "_decisions", "_life", "_settings", "num_refused", "step_ends")

    def __init__(self, settings: SchedulerSettings, cost: CostModel, life: Lifecycle, decisions: DecisionRing) -> None:
        self._settings = settings
        self._cost = cost
        self._life = life
        self._decisions = decisions
        self.num_refused = 0
        self.step_ends = 0.0  # when the plans in flight are expected to have ended

    def check(self, state: RequestState, now: float) -> None:
        """Raise TooLateError for a request that would be late."""
        ttft_s = state.request.slo.ttft_s
        if not state.request.refuse_late or ttft_s is None or state.request.leader is not None:
            return  # a later choice shares the prompt of the first, which was taken in just before it
        predicted = self._cost.predict_ttft(self._snapshot(state, now), state.known)
        left_ms = 1e3 * (state.arrival + ttft_s - now)
        if predicted.lo <= left_ms:
            return
        self.num_refused += 1
        wait_s = max(0.0, predicted.value - self._cost.prefill_ms(state.known)) / 1e3
        if self._decisions.capacity:
            numbers = {"predicted_ms": predicted.value, "least_ms": predicted.lo, "target_ms": 1e3 * ttft_s}
            self._decisions.record(
                Decision(
                    time=now,
                    step=self._life.step,
                    request_id=state.request_id,
                    kind=Kind.REFUSE,
                    reason=Reason.TOO_LATE,
                    numbers=numbers,
                )
            )
        raise TooLateError(
            "the first token would come after its target, and the class of this request refuses such requests",
            retry_after_s=wait_s,
            seen=f"predicted after {predicted.value / 1e3:.3g} s ({predicted.lo / 1e3:.3g} s at the least)",
            expected=f"within {ttft_s:g} s, {max(0.0, left_ms) / 1e3:.3g} s of which are left",
            fix=f"retry in {wait_s:.3g} s, loosen the target, or ask for another class",
        )

    def _snapshot(self, state: RequestState, now: float) -> EngineSnapshot:
        settings, life = self._settings, self._life
        num_decoding = context = tokens_left = todo = num_begun = 0
        for other in life.running.values():
            if other.todo <= 1:
                num_decoding += 1
                context += other.known
                tokens_left += other.limit - other.known
            elif other.priority <= state.priority:
                num_begun += 1
                todo += other.todo
        num_ahead, tokens_ahead = life.queue.ahead_of(state)
        return EngineSnapshot(
            num_decoding=num_decoding,
            decode_context_tokens=context,
            prefill_tokens_ahead=todo + tokens_ahead,
            num_ahead=num_begun + num_ahead,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            prefill_chunk_tokens=settings.prefill_chunk_tokens,
            min_prefill_tokens=settings.min_prefill_tokens,
            ms_left_in_step=1e3 * max(0.0, self.step_ends - now),
            mean_tokens_left=tokens_left / num_decoding if num_decoding else 0.0,
        )
