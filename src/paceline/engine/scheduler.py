"""The scheduler: requests in, plans out, results in, outputs out. Pure bookkeeping, the same in every engine.

    add / abort / expire     what comes from outside, each with the time it came
    plan(now)                the next step, a value; numbers it, and remembers how to read its result
    apply(result, now)       the oldest plan in flight has ended
    outputs()                what became final

The same calls give the same plans, byte for byte: no clock, no randomness, no order taken from a set. Not here: text,
tensors, threads, and the prices themselves (a `CostModel` is asked).
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Sequence

from paceline.contracts.decision import Decision, Kind, Reason
from paceline.contracts.kv import KVEvents
from paceline.contracts.ports import CostModel, Drafter, EngineStats, ExecutorCaps, Prices
from paceline.contracts.request import FinishReason, Request, RequestOutput
from paceline.contracts.step import StepPlan, StepResult
from paceline.engine.admission import Admission
from paceline.engine.apply import Applier
from paceline.engine.deadlines import Deadlines
from paceline.engine.decisions import DecisionRing, behind
from paceline.engine.horizon import DecodeRun, Horizon, StepTimes
from paceline.engine.journal import Began
from paceline.engine.kv_manager import KVManager
from paceline.engine.lateness import Lateness
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.plan_builder import PlanBuilder
from paceline.engine.plan_columns import Flight
from paceline.engine.queue import WaitingQueue
from paceline.engine.request_state import RequestState
from paceline.engine.settings import SchedulerSettings
from paceline.engine.slack import Slack
from paceline.errors import StallError

RECENT_DECISIONS = 32  # that `stats` shows


class Scheduler:
    """`token_bytes[id]` are the bytes a token adds to the text; without them stop strings are refused. `token_times`
    False: tokens that nobody is told of (see `apply_repeated`) are one chunk of their request's timeline."""

    def __init__(
        self,
        settings: SchedulerSettings,
        caps: ExecutorCaps,
        kv: KVManager,
        cost: CostModel,
        *,
        token_bytes: Sequence[bytes] | None = None,
        eos_token_ids: Sequence[int] = (),
        drafter: Drafter | None = None,
        decisions: DecisionRing | None = None,
        token_times: bool = True,
    ) -> None:
        settings.check_caps(caps)
        self.settings = settings
        self.decisions = DecisionRing() if decisions is None else decisions
        self._caps = caps
        self._has_runs = caps.max_in_flight == 1
        self._cost = cost
        self._kv = kv
        self._queue = WaitingQueue(settings.policy, ages=settings.max_wait_ms > 0.0)
        self._admission = Admission(settings, caps, kv, token_bytes=token_bytes, eos_token_ids=eos_token_ids)
        self._life = Lifecycle(kv, self._queue, self.decisions, num_rows=settings.max_num_seqs, token_times=token_times)
        self._builder = PlanBuilder(settings, caps, cost, self._life, self._admission, drafter)
        self._lateness = Lateness(settings, cost, self._life, self.decisions)
        self._applier = Applier(self._life)
        self._horizon = Horizon(self._builder, self._applier, self._life)
        self._deadlines = Deadlines()
        self._flights: deque[Flight] = deque()
        self._num_late = 0

    # intake

    def add(self, request: Request, now: float, answer: Sequence[int] | None = None) -> None:
        """Take a request in. Raises RequestError (it is wrong), QueueFullError (there is no place) or TooLateError (it
        would be late, and asks to be refused then); nothing changes then. `answer`: its output by position, prior
        output included, where that is known beforehand; only for requests whose tokens are drawn one by one."""
        admission, queue = self._admission, self._queue
        admission.check(request, self._life.open)
        if admission.bounds_queue:
            admission.check_queue(request, num_waiting=queue.num_requests, waiting_tokens=queue.num_tokens)
        self._enter(self._make_state(request, now, answer), now)

    def add_all(self, requests: Sequence[Request], now: float) -> None:
        """Take all of them in, in order, or none: raises what `add` raises for the first that is refused."""
        admission, queue = self._admission, self._queue
        states: dict[int, RequestState] = {}
        taken = ChainMap(states, self._life.open)
        waiting_tokens = queue.num_tokens
        for request in requests:
            admission.check(request, taken)
            admission.check_queue(request, num_waiting=queue.num_requests + len(states), waiting_tokens=waiting_tokens)
            states[request.request_id] = state = self._make_state(request, now)
            waiting_tokens += state.known
        for state in states.values():
            self._enter(state, now)

    def _make_state(self, request: Request, now: float, answer: Sequence[int] | None = None) -> RequestState:
        state = self._admission.make_state(request, now, answer)
        if self._builder.slack is not None:
            self._builder.slack.set_targets(state)
        if request.refuse_late:
            self._lateness.check(state, now)
        return state

    def _enter(self, state: RequestState, now: float) -> None:
        self._life.enter(state)
        request = state.request
        if request.deadline is not None or request.queue_deadline is not None:
            self._deadlines.add(state)
            self._deadlines.trim(len(self._life.open))
        if self._builder.slack is not None:
            self._note_targets(self._builder.slack, state, now)

    def _note_targets(self, slack: Slack, state: RequestState, now: float) -> None:
        slack.note(state, now)
        target_s = state.request.slo.tpot_s
        if target_s is not None and state.tpot_s > target_s:
            numbers = {"target_ms": 1e3 * target_s, "alone_ms": slack.alone_ms(state)}
            self._life.record(state, Kind.CLAMP, Reason.TPOT_OUT_OF_REACH, now, numbers)

    def abort(self, request_id: int, now: float) -> None:
        """End a request, in whatever phase it is; unknown and finished ones are ignored."""
        state = self._life.open.get(request_id)
        if state is not None:
            self._life.finish(state, FinishReason.ABORT, Reason.ABORTED, now)

    def abort_all(self, now: float) -> None:
        """End all requests, oldest first."""
        for state in list(self._life.open.values()):
            self._life.finish(state, FinishReason.ABORT, Reason.ABORTED, now)

    def expire(self, now: float) -> None:
        """End the requests whose deadline or queue timeout has come."""
        while (due := self._deadlines.pop_due(now)) is not None:
            state, reason = due
            self._life.finish(state, FinishReason.TIMEOUT, reason, now, error=f"timed out: {reason.value}")

    # the step

    def plan(self, now: float) -> StepPlan:
        """The next step; empty when nothing can be done now. Raises StallError when that can never change."""
        plan, _ = self._decide(now, True)
        assert plan is not None
        return plan

    def plan_unwritten(self, now: float) -> Flight | None:
        """The same step for who computes nothing and needs no plan to send: decided and in flight, without its columns.
        None: nothing can be done now. `apply_unwritten` ends it; all requests must have known answers."""
        return self._decide(now, False)[1]

    def _decide(self, now: float, write: bool) -> tuple[StepPlan | None, Flight | None]:
        assert len(self._flights) < self._caps.max_in_flight, "no plan fits in flight"
        queue, builder, lateness = self._queue, self._builder, self._lateness
        queue.now = now
        if settled := self._kv.settled():
            queue.wake_all(settled)
        builder.room.num_in_flight = len(self._flights)
        builder.begins = lateness.step_ends
        plan, flight = builder.build(now, write=write)
        for state in queue.take_late():
            self._num_late += 1
            self._life.record(state, Kind.WAIT, Reason.LATE, now, {"late_ms": 1e3 * (now - state.start_by)})
        if flight is not None:
            self._flights.append(flight)
            lateness.step_ends = max(now, lateness.step_ends) + flight.est_ms / 1e3
            self._life.step += 1
        elif self._life.open and not self._flights and self._builder.prefills.hold_until is None:
            self._stall()
        return plan, flight

    def _stall(self) -> None:
        raise StallError(
            "requests wait, and nothing can be planned, is in flight or has a wake-up time",
            seen=f"{self.num_running} running, {self.num_waiting} waiting, {self._queue.num_parked} of them parked",
            expected="at least one row in the plan",
            fix=f"report this with the last decisions:\n{self.decisions.dump()}",
        )

    def apply(self, result: StepResult, now: float) -> None:
        """Take in the result of the oldest plan in flight; the cost model learns what it took."""
        flight = self._flights.popleft()
        if not self._flights:
            self._lateness.step_ends = now
        self._applier.apply(flight, result, now)
        if result.device_ms > 0.0:
            self._cost.observe(flight.shape, result.device_ms)

    def apply_unwritten(self, now: float, tell: bool = True) -> None:
        """Take in the unwritten plan in flight. The cost model does not learn from it. `tell` False: outputs are of
        first tokens and ends only."""
        self._applier.apply_unwritten(self._flights.popleft(), now, tell)

    def horizon(self) -> DecodeRun | None:
        """The run of decode steps that the next plans make up, as far as nothing comes from outside; None: plan as
        always. Only between steps, and never with several plans in flight. See `engine.horizon`."""
        return self._horizon.look() if self._has_runs and not self._flights else None

    def apply_repeated(self, run: DecodeRun, num: int, times: StepTimes, tell: bool = True) -> None:
        """Plan and apply the first `num` steps of a run at once. The cost model does not learn from them. `tell` False:
        outputs are of first tokens and ends only."""
        self._horizon.apply_repeated(run, num, times, tell)

    def outputs(self) -> list[RequestOutput]:
        """What became final since the last call, in order."""
        life = self._life
        if not life.outputs:
            return []
        outputs, life.outputs = life.outputs, []
        return outputs

    def wake_time(self) -> float | None:
        """Earliest time at which an empty plan could become something else; None: only through a result or a call."""
        held_until = self._builder.prefills.hold_until
        due = self._deadlines.next_time()
        if held_until is None or due is None:
            return due if held_until is None else held_until
        return min(held_until, due)

    def reset_prefix_cache(self, now: float) -> bool:
        """Make everything cached unfindable. Running requests keep their blocks; True if there were none."""
        return self._kv.reset()

    # looking

    def describe(self, prices: Prices) -> Began:
        """What it was built from, as a journal begins with it; `prices` are the arguments of its cost model."""
        kv, admission = self._kv, self._admission
        return Began(
            settings=self.settings,
            caps=self._caps,
            prefix_caching=kv.prefix_caching,
            share_tenants=kv.share_tenants,
            max_chunk_tokens=kv.max_chunk_tokens,
            model_revision=kv.model_revision,
            eos_token_ids=admission.eos_token_ids,
            token_bytes=None if admission.token_bytes is None else tuple(admission.token_bytes),
            prices=dict(prices),
        )

    @property
    def has_work(self) -> bool:
        return bool(self._life.open)

    @property
    def has_outputs(self) -> bool:
        """Something became final and was not taken yet."""
        return bool(self._life.outputs)

    @property
    def num_running(self) -> int:
        return len(self._life.running)

    @property
    def num_waiting(self) -> int:
        return self._queue.num_requests

    @property
    def in_flight(self) -> int:
        """Plans that were made and whose results were not applied."""
        return len(self._flights)

    def explain(self, request_id: int) -> list[Decision]:
        """What was decided about a request, oldest first. One that waits behind others gets that derived and appended,
        with the reason of the first in line; this looks at the whole queue."""
        known = self.decisions.of_request(request_id)
        state = self._life.open.get(request_id)
        head = self._queue.peek()
        if state is None or not state.queued or head is None or head is state:
            return known
        of_head = self.decisions.of_request(head.request_id)
        if not of_head or of_head[-1].kind is not Kind.WAIT:
            return known
        position = next(i for i, other in enumerate(self._queue.in_order()) if other is state)
        return [*known, behind(of_head[-1], request_id, position)]

    def kv_events(self) -> KVEvents:
        """Changes of the prefix cache since the last call."""
        return self._kv.take_events()

    def stats(self, now: float) -> EngineStats:
        life = self._life
        return EngineStats(
            time=now,
            step=life.step,
            num_running=len(life.running),
            num_waiting=self._queue.num_requests,
            waiting_tokens=self._queue.num_tokens,
            kv=self._kv.stats(),
            num_preemptions=life.num_preemptions,
            num_finished=life.num_finished,
            computed_tokens=life.computed_tokens,
            wasted_tokens=life.wasted_tokens,
            output_tokens=life.output_tokens,
            saved_prefill_ms=life.saved_prefill_ms,
            num_refused_late=self._lateness.num_refused,
            num_late=self._num_late,
            num_paced_steps=0 if self._builder.slack is None else self._builder.slack.num_paced,
            recent=self.decisions.tail(RECENT_DECISIONS),
        )
