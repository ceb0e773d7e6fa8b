"""One request as the scheduler keeps it: its history, three counters, and a residency that can be dropped.

    computed <= planned <= known + pending

*known* tokens are prompt and accepted output; *pending* are positions drawn by plans in flight (drafts included, so it
is an upper bound of what comes); *planned* positions were handed to a plan, *computed* ones have come back. What is
left to do is known + pending - planned, and a plan that brings planned up to known + pending draws a token. There is no
prefill phase and no decode phase.

The residency (row, KV, drafts) can go at any step boundary and is rebuilt from the rest. Each loss raises `epoch`, so a
result that was under way for the old residency is recognised and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import inf

import numpy as np

from paceline.contracts.decision import Reason
from paceline.contracts.request import FinishReason, Request, TokenLogprob
from paceline.contracts.slo import Timeline
from paceline.engine.kv_manager import SequenceKeys, SequenceKV
from paceline.engine.stop import StopRules

NO_ROW = -1
NO_STEP = -1


class Phase(IntEnum):
    WAITING = 0  # in the queue, or parked until a prefix or a leader is ready
    RUNNING = 1  # has a row and KV
    FINISHED_STOP = 2
    FINISHED_LENGTH = 3
    FINISHED_ABORT = 4
    FINISHED_ERROR = 5
    FINISHED_TIMEOUT = 6

    @property
    def is_terminal(self) -> bool:
        return self >= Phase.FINISHED_STOP


_FINISHED = (
    Phase.FINISHED_STOP,
    Phase.FINISHED_LENGTH,
    Phase.FINISHED_ABORT,
    Phase.FINISHED_ERROR,
    Phase.FINISHED_TIMEOUT,
)
TRANSITIONS: dict[Phase, tuple[Phase, ...]] = {
    Phase.WAITING: (Phase.RUNNING, *_FINISHED),
    Phase.RUNNING: (Phase.WAITING, *_FINISHED),  # back to WAITING: preemption
    **dict.fromkeys(_FINISHED, ()),  # terminal phases absorb
}
PHASE_OF_FINISH = {
    FinishReason.STOP: Phase.FINISHED_STOP,
    FinishReason.LENGTH: Phase.FINISHED_LENGTH,
    FinishReason.ABORT: Phase.FINISHED_ABORT,
    FinishReason.ERROR: Phase.FINISHED_ERROR,
    FinishReason.TIMEOUT: Phase.FINISHED_TIMEOUT,
}


class RequestState:
    """See the module. Written only by the scheduler's own modules; all counts are tokens."""

    __slots__ = (
        "_ids",
        "_num_ids",
        "answer",
        "arrival",
        "by_slack",
        "cached_tokens",
        "capacity",
        "computed",
        "computed_tokens",
        "drafts",
        "due",
        "epoch",
        "frontier",
        "has_followers",
        "has_grammar",
        "hold_bytes",
        "keys",
        "keys_known",
        "known",
        "kv",
        "kv_block_seconds",
        "kv_blocks",
        "kv_since",
        "last_draw_step",
        "last_step",
        "last_token_s",
        "late_after",
        "limbo_step",
        "limit",
        "listed_tokens",
        "num_prompt",
        "output",
        "output_tokens",
        "parked_on",
        "pending",
        "phase",
        "planned",
        "preemptions",
        "priority",
        "prompt_logprobs",
        "prompt_logprobs_done",
        "prompt_s",
        "queued",
        "queued_tokens",
        "reason",
        "request",
        "request_id",
        "row",
        "rules",
        "start_by",
        "stop_ids",
        "tenant",
        "timeline",
        "tpot_s",
        "wants_logprobs",
        "wasted_tokens",
    )

    def __init__(
        self,
        request: Request,
        rules: StopRules,
        limit: int,
        priority: int,
        tenant: str,
        now: float,
        answer: Sequence[int] | None = None,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.tenant = tenant  # as the policy sees it: "" when it does not tell tenants apart
        self.priority = priority  # as the policy sees it: lower goes first
        self.arrival = request.arrival if request.arrival > 0.0 else now
        self.rules = rules
        self.stop_ids = rules.stop_ids  # asked for each token
        self.limit = limit  # known tokens at which it ends by length
        # targets, where the scheduling mode looks at them
        self.by_slack = False  # it does
        self.due = inf  # when its first token is to be there
        self.late_after = inf  # from when on its first token cannot win it its targets
        self.start_by = inf  # latest start: when its prompt must begin for that
        self.prompt_s = 0.0  # what its prompt takes by the prices of when it came
        self.tpot_s = inf  # seconds a token may take on average
        # history
        prior = request.prior_output
        self.num_prompt = num_prompt = request.prompt.num_tokens
        self.output: list[int] = list(prior)  # not kept where the answer is known
        self.answer = answer  # output by position, where it is known beforehand
        self.known = known = num_prompt + len(prior)
        self._ids: np.ndarray | None = None  # growable int32 copy of the known ids, filled on demand
        self._num_ids = 0
        self.keys: SequenceKeys | None = None
        self.keys_known = known  # tokens the keys have been told of
        # the arithmetic
        self.computed = 0
        self.planned = 0
        self.pending = 0
        self.epoch = 0
        self.phase = Phase.WAITING
        # residency
        self.row = NO_ROW
        self.kv: SequenceKV | None = None
        self.capacity = 0  # positions for which blocks exist
        self.drafts: Sequence[int] = ()
        self.last_step = NO_STEP  # last plan that touches its blocks
        self.last_draw_step = NO_STEP  # last plan that draws for it
        self.limbo_step = NO_STEP  # step that must end before the blocks it gave back last are free
        # waiting
        self.queued = False  # has a live entry in the queue
        self.parked_on: bytes | int | None = None  # prefix key, or request id of the leader
        self.has_followers = False  # somebody is parked on this request
        self.queued_tokens = 0
        self.reason: Reason | None = None  # of the last decision
        # meters
        self.preemptions = 0
        self.cached_tokens = -1  # hit at first admission; -1 = never admitted
        self.computed_tokens = 0  # of residencies that are over, and what the present one took back
        self.wasted_tokens = 0
        self.output_tokens = 0
        self.frontier = 0  # positions ever computed and kept: computing one again is waste
        self.kv_block_seconds = 0.0
        self.kv_blocks = 0
        self.kv_since = 0.0
        self.timeline = Timeline(planned=self.arrival, arrival=now)
        self.listed_tokens = 0  # of `output_tokens`, those in a chunk of the timeline: see `Lifecycle.count`
        self.last_token_s = now  # when the last of the others came
        # output under way
        sampling = request.sampling
        wants = sampling.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprob | None] | None = [None] if wants else None
        self.prompt_logprobs_done = not wants  # handed out, or never asked for
        self.has_grammar = request.grammar is not None  # its cursor belongs to the residency: see row_grammars
        self.wants_logprobs = sampling.logprobs is not None
        self.hold_bytes = 0
        if answer is not None:
            looks = rules.matcher is not None or self.wants_logprobs or self.has_grammar or wants
            assert not looks, "an answer cannot be known of a request whose tokens are looked at one by one"

    def move_to(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"request {self.request_id}: {self.phase.name} -> {phase.name}"
        self.phase = phase

    @property
    def todo(self) -> int:
        return self.known + self.pending - self.planned

    @property
    def resumes(self) -> bool:
        """It was preempted, and waits to go on with what it had begun."""
        return self.preemptions > 0

    @property
    def rank(self) -> float:
        """Its place among those that wait: when its first token is due. What was preempted goes first: what it had
        computed would be lost for good if others took its blocks."""
        return -inf if self.preemptions and self.by_slack else self.due

    def is_lost(self, now: float) -> bool:
        """Its first token came, or would come, after it was due: whatever follows, it has missed its target."""
        chunks = self.timeline.chunks
        return (chunks[0][0] if chunks else now) > self.late_after

    def token_due(self) -> float:
        """When its next token is to be there for the mean of those so far to be its target. Only with a first token."""
        first, count = self.timeline.chunks[0]
        return first + (self.output_tokens - count + 1) * self.tpot_s

    def ids(self) -> np.ndarray:
        """Known ids, [known] int32: a view that is valid until the next call."""
        if self._ids is None:
            prompt = self.request.prompt.ids
            if self.known == self.num_prompt:
                return prompt
            self._ids = np.empty(max(64, self.known + self.known // 2), dtype=np.int32)
            self._ids[: self.num_prompt] = prompt
            self._num_ids = self.num_prompt
        if self.known > len(self._ids):
            grown = np.empty(2 * self.known, dtype=np.int32)
            grown[: self._num_ids] = self._ids[: self._num_ids]
            self._ids = grown
        if self._num_ids < self.known:
            self._ids[self._num_ids : self.known] = self._output_from(self._num_ids)
            self._num_ids = self.known
        return self._ids[: self.known]

    def extend_keys(self) -> None:
        """Tell the block keys of the tokens that came since they were last told, if that makes a key."""
        keys = self.keys
        assert keys is not None
        if self.known >= keys.next_known:
            keys.extend(self._output_from(self.keys_known))
            self.keys_known = self.known

    def _output_from(self, position: int) -> Sequence[int]:
        """Known tokens from a position behind the prompt on."""
        begin = position - self.num_prompt
        return self.output[begin:] if self.answer is None else self.answer[begin : self.known - self.num_prompt]

    def account_blocks(self, now: float) -> None:
        """Integrate KV block-seconds up to `now`, and note how many blocks are held from here on."""
        self.kv_block_seconds += self.kv_blocks * (now - self.kv_since)
        self.kv_blocks = self.kv.num_blocks if self.kv is not None else 0
        self.kv_since = now

    def drop_residency(self) -> int:
        """Forget everything that is rebuilt at the next admission; the caller returns row and blocks.

        Returns the positions in flight that were not counted as wasted before: their results will be dropped.
        """
        planned, computed, frontier = self.planned, self.computed, self.frontier
        kept = frontier if frontier < planned else planned
        wasted = planned - (computed if computed > kept else kept)
        self.wasted_tokens += wasted
        if computed > frontier:
            self.frontier = computed
        self.row = NO_ROW
        self.kv = None
        self.capacity = 0
        self.computed = 0
        self.planned = 0
        self.pending = 0
        self.drafts = ()
        self.last_step = NO_STEP
        self.last_draw_step = NO_STEP
        self.epoch += 1
        if self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt:
            self.prompt_logprobs = [None]  # those positions are computed again, and reported then
        return wasted
