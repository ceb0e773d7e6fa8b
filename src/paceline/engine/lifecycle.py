"""Every change of phase: admit, preempt, finish. The only place that gives and takes rows and blocks.

So there is one way to lose a residency, whatever the cause and whatever is in flight: the row is free for the next
plan, the blocks go back (into limbo while a submitted step may touch them), the epoch rises.
"""

from __future__ import annotations

from heapq import heappop, heappush

from paceline.contracts.decision import Decision, Kind, Reason
from paceline.contracts.request import FinishReason, RequestOutput, TokenLogprob, Usage
from paceline.contracts.slo import Outcome, Timeline
from paceline.engine.decisions import DecisionRing
from paceline.engine.kv_manager import KVManager, SequenceKV
from paceline.engine.lengths import Lengths
from paceline.engine.queue import WaitingQueue
from paceline.engine.request_state import NO_STEP, PHASE_OF_FINISH, Phase, RequestState

_OUTCOMES = {
    FinishReason.STOP: Outcome.OK,
    FinishReason.LENGTH: Outcome.OK,
    FinishReason.ABORT: Outcome.CLIENT_CANCEL,
    FinishReason.ERROR: Outcome.STREAM_ERROR,
    FinishReason.TIMEOUT: Outcome.TIMEOUT,
}


class Lifecycle:
    """Who is where. `running` is in order of admission; `releases` and `outputs` are collected until somebody takes
    them (the next plan, the loop)."""

    __slots__ = (
        "_fresh_row",
        "_in_limbo",
        "_returned_rows",
        "applied_step",
        "computed_tokens",
        "decisions",
        "kv",
        "lengths",
        "lowest_running_class",
        "num_finished",
        "num_preemptions",
        "num_rows",
        "open",
        "output_tokens",
        "outputs",
        "queue",
        "releases",
        "running",
        "running_classes",
        "saved_prefill_ms",
        "step",
        "token_times",
        "wasted_tokens",
    )

    def __init__(
        self,
        kv: KVManager,
        queue: WaitingQueue,
        decisions: DecisionRing,
        *,
        num_rows: int,
        token_times: bool = True,
    ) -> None:
        self.kv = kv
        self.queue = queue
        self.decisions = decisions
        self.num_rows = num_rows
        self.lengths: Lengths | None = None  # of answers; kept where somebody asks
        self.token_times = token_times  # False: tokens that nobody is told of are one chunk of the timeline
        self.open: dict[int, RequestState] = {}  # by request id: waiting or running
        self.running: dict[int, RequestState] = {}
        self.running_classes: dict[int, int] = {}  # priority -> how many run
        self.lowest_running_class: int | None = None
        self._fresh_row = 0  # rows from here on were never taken
        self._returned_rows: list[int] = []  # heap of the free ones before it
        self.releases: list[int] = []  # rows the executor still holds for somebody
        self.outputs: list[RequestOutput] = []
        self.step = 0  # the step planned next
        self.applied_step = NO_STEP
        self._in_limbo: dict[int, list[Timeline]] = {}  # by step: of ended requests whose blocks wait for it
        # totals
        self.num_preemptions = 0
        self.num_finished = 0
        self.computed_tokens = 0
        self.wasted_tokens = 0
        self.output_tokens = 0
        self.saved_prefill_ms = 0.0  # by prefix hits at first admission

    def record(
        self,
        state: RequestState,
        kind: Kind,
        reason: Reason,
        now: float,
        numbers: dict[str, float] | None = None,
        *,
        other: int | None = None,
    ) -> None:
        """Note a decision, if it is not the one noted last for this request."""
        if state.reason is reason:
            return
        state.reason = reason
        if not self.decisions.capacity:
            return
        self.decisions.record(
            Decision(
                time=now,
                step=self.step,
                request_id=state.request_id,
                kind=kind,
                reason=reason,
                numbers=numbers or {},
                other=other,
            )
        )

    @property
    def free_rows(self) -> list[int]:
        """In no order."""
        return [*self._returned_rows, *range(self._fresh_row, self.num_rows)]

    def enter(self, state: RequestState) -> None:
        """A new request begins to wait."""
        self.open[state.request_id] = state
        self.queue.push(state)

    def leave_queue(self, state: RequestState) -> None:
        """The head of the queue stops waiting; `admit` follows in the same step."""
        popped = self.queue.pop()
        assert popped is state

    def admit(self, state: RequestState, kv: SequenceKV, now: float) -> None:
        """The head of the queue, or who has just left it, becomes resident, with blocks just reserved."""
        if state.queued:
            self.leave_queue(state)
        state.move_to(Phase.RUNNING)
        if self._returned_rows:
            state.row = heappop(self._returned_rows)
        else:
            assert self._fresh_row < self.num_rows, "no row is free"
            state.row = self._fresh_row
            self._fresh_row += 1
        state.kv = kv
        state.computed = state.planned = kv.num_cached_tokens
        state.kv_since = now
        self.running[state.request_id] = state
        priority, lowest = state.priority, self.lowest_running_class
        self.running_classes[priority] = self.running_classes.get(priority, 0) + 1
        if lowest is None or priority > lowest:
            self.lowest_running_class = priority
        if state.cached_tokens < 0:
            state.cached_tokens = state.frontier = kv.num_cached_tokens
            state.timeline.admitted = now

    def preempt(self, state: RequestState, reason: Reason, now: float, *, other: RequestState) -> None:
        """Take a running request's residency; it waits again, with the age it had."""
        assert state.last_step != NO_STEP, "preempted before it ever ran"
        self._leave(state, now)
        state.move_to(Phase.WAITING)
        state.preemptions += 1
        self.num_preemptions += 1
        numbers = {"computed": float(state.frontier), "known": float(state.known)}
        self.record(state, Kind.PREEMPT, reason, now, numbers, other=other.request_id)
        self.queue.push(state)

    def _leave(self, state: RequestState, now: float) -> None:
        kv, row, classes = state.kv, state.row, self.running_classes
        assert kv is not None
        in_flight = state.last_step if state.last_step > self.applied_step else None
        self.kv.release(kv, in_flight)
        state.limbo_step = NO_STEP if in_flight is None else in_flight
        self.releases.append(row)
        heappush(self._returned_rows, row)
        del self.running[state.request_id]
        left = classes[state.priority] - 1
        if left:
            classes[state.priority] = left
        else:
            del classes[state.priority]
            self.lowest_running_class = max(classes, default=None)
        state.computed_tokens += state.planned - kv.num_cached_tokens
        self.wasted_tokens += state.drop_residency()
        state.account_blocks(now)
        if state.has_followers:
            self._wake_followers(state)

    def step_done(self, step: int, now: float) -> None:
        """The result of `step` was applied: blocks that waited for it are free."""
        self.kv.step_done(step)
        if self._in_limbo:
            for timeline in self._in_limbo.pop(step, ()):
                timeline.blocks_free = now

    def _wake_followers(self, state: RequestState) -> None:
        if state.has_followers:
            state.has_followers = False
            self.queue.wake(state.request_id)

    def prompt_computed(self, state: RequestState) -> None:
        """The prompt is in the cache: other choices of the same call may share it."""
        self._wake_followers(state)

    def emit(
        self, state: RequestState, token_ids: list[int], logprobs: list[TokenLogprob] | None, now: float
    ) -> RequestOutput:
        """Hand out tokens that are final; the caller may add to the output."""
        output = RequestOutput(request_id=state.request_id, token_ids=token_ids, logprobs=logprobs)
        if token_ids:
            count = len(token_ids)  # `count`, without a call: the hot path
            state.output_tokens = state.listed_tokens = state.output_tokens + count
            self.output_tokens += count
            state.timeline.chunks.append((now, count))
        collected = state.prompt_logprobs
        if collected is not None and len(collected) == state.num_prompt:
            output.prompt_logprobs = collected
            state.prompt_logprobs = None
            state.prompt_logprobs_done = True
        self.outputs.append(output)
        return output

    def count(self, state: RequestState, num_tokens: int, now: float) -> None:
        """So many more tokens are final, the last of them now, and nobody is told: it had its first token before."""
        state.output_tokens += num_tokens
        self.output_tokens += num_tokens
        if self.token_times:
            state.timeline.chunks.append((now, num_tokens))
            state.listed_tokens = state.output_tokens
        else:
            state.last_token_s = now

    def list_rest(self, state: RequestState) -> None:
        """What is not in its timeline becomes one chunk of it."""
        if (missing := state.output_tokens - state.listed_tokens) > 0:
            state.timeline.chunks.append((state.last_token_s, missing))
            state.listed_tokens = state.output_tokens

    def finish(
        self,
        state: RequestState,
        finish: FinishReason,
        reason: Reason,
        now: float,
        *,
        token_ids: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
        error: str | None = None,
    ) -> None:
        """End a request in whatever phase it is: one terminal output, with usage and timeline."""
        if state.phase is Phase.WAITING:
            self.queue.discard(state)
        else:
            self._leave(state, now)
        del self.open[state.request_id]
        if state.has_followers:
            self._wake_followers(state)
        state.move_to(PHASE_OF_FINISH[finish])
        if token_ids is None:
            token_ids = []
            matcher = state.rules.matcher
            if matcher is not None and finish is not FinishReason.ABORT:
                token_ids, held, _ = matcher.take(everything=True)
                logprobs = held if state.wants_logprobs else None
        if state.listed_tokens < state.output_tokens:
            self.list_rest(state)
        output, timeline = self.emit(state, token_ids, logprobs, now), state.timeline
        output.finish = finish
        output.error = error
        if finish is FinishReason.STOP:
            output.stop_reason = state.rules.stop_reason
            output.cut_bytes = state.rules.cut_bytes
        timeline.end = now
        if state.limbo_step > self.applied_step:
            self._in_limbo.setdefault(state.limbo_step, []).append(timeline)
        else:
            timeline.blocks_free = now
        timeline.outcome = _OUTCOMES[finish]
        output.timeline = timeline
        output.usage = usage_of(state)
        self.num_finished += 1
        if self.lengths is not None and (finish is FinishReason.STOP or finish is FinishReason.LENGTH):
            self.lengths.note(state)
        if self.decisions.capacity:
            kind = Kind.REFUSE if reason is Reason.NEVER_FITS else Kind.FINISH
            self.record(state, kind, reason, now, {"output": float(state.output_tokens), "known": float(state.known)})


def usage_of(state: RequestState) -> Usage:
    """The meter of a finished request. computed - wasted + cached = positions whose KV served it."""
    return Usage(
        prompt_tokens=state.num_prompt,
        cached_tokens=min(max(state.cached_tokens, 0), state.num_prompt),
        computed_tokens=state.computed_tokens,
        wasted_tokens=state.wasted_tokens,
        output_tokens=state.output_tokens,
        kv_block_seconds=state.kv_block_seconds,
        preemptions=state.preemptions,
    )
