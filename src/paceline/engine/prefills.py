"""Who computes prompt positions in a step: requests that have begun, then new ones in the queue's order.

A request is let in when what it will not find in the cache fits to the end of its known tokens and leaves headroom. It
waits when that, a row or tokens are missing, while another computes its next block or its call's prompt and that pays.
"""

from __future__ import annotations

from paceline.contracts.decision import Kind, Reason
from paceline.contracts.ports import CostModel, StepShape
from paceline.contracts.request import may_share_prompt
from paceline.engine import policies
from paceline.engine.kv_manager import Quote, SequenceKV
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.line import TURN
from paceline.engine.plan_columns import Selection
from paceline.engine.request_state import NO_ROW, Phase, RequestState
from paceline.engine.room import Room
from paceline.engine.settings import SchedulerSettings
from paceline.engine.shares import Shares
from paceline.engine.slack import Slack

_ASK_AGAIN_STEPS = 16
NO_END = 1 << 62  # steps


class Prefills:
    """Chooses prefill work for the plan; admits, and preempts lower classes for higher ones."""

    def __init__(
        self, settings: SchedulerSettings, cost: CostModel, life: Lifecycle, room: Room, slack: Slack | None
    ) -> None:
        self._settings = settings
        self._cost = cost
        self._slack = slack  # None: order and admission look at no target
        self._life = life
        self._kv = life.kv
        self._queue = life.queue
        self._room = room
        layout = life.kv.layout
        self._num_groups = len(layout.groups)
        self._num_blocks = layout.num_blocks
        self._batch_left = 0  # static batching: places left in the batch being formed
        self.shares: Shares | None = None  # of this step; None: nobody has to share
        self._blocked: tuple[int, int | None] | None = None  # head that lacked blocks, and the lowest class then ...
        self._blocked_available = 0  # ... blocks available then
        self._blocked_until = 0  # ... step from which it is quoted again in any case
        self.hold_until: float | None = None  # admission waits for a fuller batch until then

    def select(self, selection: Selection, started: list[RequestState], budget: int, now: float) -> int:
        """Hand out up to `budget` positions. Returns how many were."""
        queue = self._queue
        self.hold_until = None
        left = budget
        self.shares = self._shares_of(budget, now) if self._settings.policy == "fair" else None
        if len(started) > 1:
            if self._slack is None or self._life.step % TURN == 0:  # a step in so many, so that nobody starves
                started.sort(key=lambda s: (s.priority, queue.debt(s), s.arrival, s.request_id))
            else:
                self._slack.sort(started, queue.debt, now)
        turn = iter(started)
        begun = next(turn, None)
        admitting = queue.num_requests > queue.num_parked and self._may_admit(now)
        parks_left = self._settings.max_num_seqs  # bounds the quotes of one step
        while left > 0:
            head = queue.peek() if admitting else None
            if begun is not None and (head is None or self._goes_on_first(begun, head, now)):
                left -= self._continue(selection, begun, left, now)
                begun = next(turn, None)
            elif head is None:
                break
            else:
                count = self._try_admit(selection, head, left, now)
                if count > 0:
                    left -= count
                elif head.parked_on is None and head.phase is Phase.WAITING:
                    admitting = False  # strictly in order: nobody passes the one that cannot go
                else:  # it was parked, or refused
                    parks_left -= 1
                    admitting = parks_left > 0
        if admitting and left <= 0 and (head := queue.peek()) is not None:
            self._wait(head, Reason.NO_BUDGET, now, budget=budget)
        elif self._batch_left and left > 0 and not queue.num_parked:
            self._batch_left = 0  # the static batch is complete
        return budget - left

    def _goes_on_first(self, begun: RequestState, head: RequestState, now: float) -> bool:
        if self._slack is None or begun.priority != head.priority or begun.tenant != head.tenant:
            return policies.goes_on_first(begun, head, self._queue.debt)
        return self._slack.urgency(begun, now) <= self._slack.urgency(head, now)

    def _continue(self, selection: Selection, state: RequestState, left: int, now: float) -> int:
        if state.row == NO_ROW:
            return 0  # a victim by now
        todo = state.todo
        if self.shares is not None:
            left = self.shares.room(state, left)
        count = policies.chunk_tokens(self._settings, todo, left)
        if not count:
            return 0
        end = state.planned + count
        # Its blocks were promised at admission; only plans in flight over a sliding window can delay some of them.
        if end > state.capacity and not self._room.grow(selection, state, end, now):
            return 0
        if count < todo:
            self._note_chunk(state, count, todo, now)
        if self.shares is not None:
            self.shares.spend(state, count)
        selection.prefills.append((state, count))
        return count

    def _shares_of(self, budget: int, now: float) -> Shares | None:
        """One tenant alone has nobody to share with."""
        settings, queue = self._settings, self._queue
        about = queue.arrivals.about(now)  # asked in any case: it forgets who is gone
        if settings.batching == "static" or len(about) < 2:
            return None
        running = self._life.running.values()
        return Shares(about, running, queue.debt_of, max_rows=settings.max_num_seqs, budget=budget)

    def _note_chunk(self, state: RequestState, count: int, todo: int, now: float) -> None:
        """It got `count` positions of `todo`, which is more."""
        numbers = {"tokens": float(count), "todo": float(todo)}
        reason = Reason.CHUNKED
        if self._slack is not None and self._slack.is_pacing:
            reason, numbers["step_ms"] = Reason.PACED, 1e3 * self._slack.limit_s
        self._life.record(state, Kind.CHUNK, reason, now, numbers)

    def _wait(
        self, state: RequestState, reason: Reason, now: float, *, other: int | None = None, **numbers: float
    ) -> None:
        self._life.record(state, Kind.WAIT, reason, now, {k: float(v) for k, v in numbers.items()}, other=other)

    def _may_admit(self, now: float) -> bool:
        """Is admission open at all: static batches and `max_wait_ms` close it."""
        settings, queue, running = self._settings, self._queue, len(self._life.running)
        if settings.batching == "static":
            if self._batch_left:
                return True
            if running:
                if (head := queue.peek()) is not None:
                    self._wait(head, Reason.STATIC_BATCH, now, running=running)
                return False
        if settings.max_wait_ms > 0.0 and (oldest := queue.oldest_arrival()) is not None:
            until = policies.hold_until(
                settings,
                oldest=oldest,
                num_running=running,
                num_waiting=queue.num_requests,
                waiting_tokens=queue.num_tokens,
            )
            if until is not None and now < until:
                self.hold_until = until
                if (head := queue.peek()) is not None:
                    self._wait(head, Reason.BATCH_WAIT, now, until=until)
                return False
        if settings.batching == "static":
            self._batch_left = settings.max_num_seqs
        return True

    def _try_admit(self, selection: Selection, head: RequestState, left: int, now: float) -> int:
        """Admit the head of the queue with up to `left` positions. Returns how many; 0: it was not, or was parked."""
        life, settings = self._life, self._settings
        if selection.victim_class is not None and head.priority >= selection.victim_class:
            self._wait(head, Reason.AFTER_PREEMPTION, now)
            return 0
        if self.shares is not None and (left := self.shares.room(head, left)) <= 0:
            self._wait(head, Reason.TENANT_SHARE, now, running=len(life.running))
            return 0
        lowest = life.lowest_running_class
        may_preempt = lowest is not None and lowest > head.priority and settings.batching == "continuous"
        row_limit = settings.max_num_seqs
        if self.shares is not None and not may_preempt:  # a lower class is not preempted to keep a row free
            row_limit = self.shares.row_limit(head)
        no_row = len(life.running) >= row_limit
        full = len(life.running) >= settings.max_num_seqs
        for_share = None
        if full and not may_preempt and self.shares is not None:
            for_share = self.shares.victim_for(head, selection.admits)
        if no_row and not may_preempt and for_share is None:
            self._wait(head, Reason.NO_ROWS if full else Reason.TENANT_SHARE, now, running=len(life.running))
            return 0
        if self._still_blocked(head, lowest):
            return 0
        if self._slack is not None and not may_preempt and not self._slack.keeps_pace(life.running.values(), head, now):
            self._wait(head, Reason.PACE, now, running=len(life.running))
            return 0
        sibling = None if head.request.leader is None else self._leader_kv(head, now)
        if head.parked_on is not None:
            return 0
        quote = self._quote(head, sibling)
        if quote.pending is not None and self._waits_for_prefix(selection, head, quote, now):
            return 0
        if for_share is not None:
            missing = self._missing(quote)
            if missing > 0 or (kv := self._kv.reserve(quote)) is None:
                self._block(head, missing, now)  # a row alone would not help it, so nobody loses one
                return 0
            # out of the order first: the victim's place in it may be before the head's
            life.leave_queue(head)
            self._room.take(selection, for_share, Reason.ROW_FOR_SHARE, head, now)
            return self._enter(selection, head, kv, left, now)
        kv = self._reserve(selection, head, quote, sibling, no_row=no_row, may_preempt=may_preempt, now=now)
        if kv is None:
            return 0
        return self._enter(selection, head, kv, left, now)

    @property
    def is_forming(self) -> bool:
        """A batch is being formed: admission waits for company, or has places left in a static batch."""
        return self.hold_until is not None or self._batch_left > 0

    def closed_steps(self, head: RequestState, *, sliding: bool) -> int:
        """For how many plans from now on `head` is sure to wait for the reason on record, if nobody comes or ends and
        rows only decode. `sliding`: there are windows, which give blocks back on the way. 0: only a plan can say. Under
        targets the head changes as time goes by, so only what holds for any head does."""
        settings, running = self._settings, self._life.running
        if settings.policy == "fair" or settings.max_wait_ms > 0.0:
            return 0
        if settings.batching == "static":
            return NO_END if running and head.reason is Reason.STATIC_BATCH else 0
        lowest = self._life.lowest_running_class
        if lowest is None or lowest > head.priority:
            return 0
        if len(running) >= settings.max_num_seqs:
            return NO_END if head.reason is Reason.NO_ROWS else 0
        if (
            self._slack is not None
            or sliding
            or head.reason is not Reason.NO_BLOCKS
            or not self._still_blocked(head, lowest)
        ):
            return 0
        return self._blocked_until - self._life.step

    def _still_blocked(self, head: RequestState, lowest: int | None) -> bool:
        """It lacked blocks, and nothing got better since: a long prompt is not quoted at every step for that. Hits may
        have appeared without a block becoming available, so once in a while it is asked again."""
        return (
            self._blocked == (head.request_id, lowest)
            and bool(self._life.running)
            and self._kv.num_available <= self._blocked_available
            and self._life.step < self._blocked_until
        )

    def _block(self, state: RequestState, missing: int, now: float) -> None:
        self._blocked = (state.request_id, self._life.lowest_running_class)
        self._blocked_available = self._kv.num_available
        self._blocked_until = self._life.step + _ASK_AGAIN_STEPS
        self._wait(state, Reason.NO_BLOCKS, now, missing=missing, available=self._kv.num_available)

    def _quote(self, state: RequestState, sibling: SequenceKV | None) -> Quote:
        if state.keys is None:
            state.keys = self._kv.keys_for(state.request)
        state.extend_keys()
        return self._kv.quote(
            state.request_id,
            state.keys,
            state.known,
            state.known - 1,
            state.prompt_logprobs_done,
            sibling,
            state.num_prompt - 1 if sibling is not None else 0,
            state.preemptions > 0,
        )

    def _leader_kv(self, state: RequestState, now: float) -> SequenceKV | None:
        """The blocks of choice 0 of the same call, once they hold the prompt. Parks `state` while it is worth waiting.

        Nothing to wait for: a leader that is gone or lost its blocks, one of a lower class, and whoever has got the
        id of a leader that is gone (ids are used again), so that it is compared here as well as at admission."""
        leader_id = state.request.leader
        if leader_id is None or state.preemptions or not state.prompt_logprobs_done or state.num_prompt < 2:
            return None
        leader = self._life.open.get(leader_id)
        if leader is None or leader.preemptions:
            return None
        if leader.request.prior_output != state.request.prior_output:
            return None
        if not may_share_prompt(state.request, leader.request):
            return None
        if leader.kv is not None and leader.computed >= state.num_prompt - 1:
            return leader.kv
        if leader.priority > state.priority:
            return None
        self._queue.park(leader_id)
        leader.has_followers = True
        self._wait(state, Reason.LEADER_PREFILL, now, other=leader_id, computed=leader.computed)
        return None

    def _waits_for_prefix(self, selection: Selection, state: RequestState, quote: Quote, now: float) -> bool:
        pending = quote.pending
        if pending is None or not self._settings.wait_for_prefix:
            return False
        owner = self._life.running.get(pending.owner)
        if owner is None or owner.priority > state.priority:
            return False  # a lower class may be kept from computing it for as long as higher ones come
        decodes = selection.decodes
        shape = StepShape(
            num_tokens=len(decodes) + 1,
            num_rows=len(decodes) + 1,
            num_sampled=len(decodes),
            context_tokens=sum(s.planned for s in decodes),
        )
        if not policies.waiting_pays(
            self._cost,
            num_known=state.known,
            num_cached=quote.hit_tokens,
            num_pending=pending.num_tokens,
            decode_shape=shape,
        ):
            return False
        self._queue.park(pending.key)
        self._wait(
            state,
            Reason.PREFIX_IN_FLIGHT,
            now,
            other=pending.owner,
            hit_tokens=quote.hit_tokens,
            pending_tokens=pending.num_tokens,
        )
        return True

    def _headroom(self) -> int:
        return policies.headroom_blocks(self._settings, self._num_blocks, self._num_groups, len(self._life.running))

    def _reserve(
        self,
        selection: Selection,
        state: RequestState,
        quote: Quote,
        sibling: SequenceKV | None,
        *,
        no_row: bool,
        may_preempt: bool,
        now: float,
    ) -> SequenceKV | None:
        """A row and the quoted blocks, from lower classes where those may be preempted. None: not in this step."""
        life, kv, room = self._life, self._kv, self._room
        running = life.running
        missing = self._missing(quote)
        at_least = state.priority + 1
        if missing > 0:
            if not running and not room.num_in_flight:
                room.refuse(state, now)
                return None
            coming = room.num_coming()
            possible = policies.releasable_blocks(running.values(), at_least=at_least) if may_preempt else 0
            if missing <= coming or missing > coming + possible:
                self._block(state, missing, now)
                return None
        while no_row or missing > room.num_coming():
            victim = policies.pick_victim(running.values(), self._queue.debt, at_least=at_least)
            if victim is None:
                break
            reason = Reason.ROW_FOR_PRIORITY if no_row else Reason.BLOCKS_FOR_PRIORITY
            room.take(selection, victim, reason, state, now)
            no_row = False
            if sibling is not None and state.request.leader not in running:
                sibling = None
            quote = self._quote(state, sibling)  # hits may have changed hands
            missing = self._missing(quote)
        if missing > 0 or (reserved := kv.reserve(quote)) is None:
            self._block(state, missing, now)
            return None
        return reserved

    def _missing(self, quote: Quote) -> int:
        """Blocks short of admitting it with headroom; 0 or less: it fits."""
        return quote.num_taken + self._headroom() - self._kv.num_available

    def _enter(self, selection: Selection, state: RequestState, kv: SequenceKV, left: int, now: float) -> int:
        resumed = state.preemptions > 0
        self._life.admit(state, kv, now)
        self._batch_left = max(0, self._batch_left - 1)
        cached = kv.num_cached_tokens
        if cached and not resumed:
            self._life.saved_prefill_ms += self._cost.prefill_ms(cached)
        reason = Reason.RESUMED if resumed else Reason.CACHE_HIT if cached else Reason.COLD
        if self._life.decisions.capacity:
            numbers = {"known": float(state.known), "cached": float(cached), "row": float(state.row)}
            self._life.record(state, Kind.ADMIT, reason, now, numbers)
        else:
            state.reason = reason
        todo = state.known + state.pending - state.planned
        count = policies.chunk_tokens(self._settings, todo, left)
        if count < todo:
            self._note_chunk(state, count, todo, now)
        entered = self._room.grow(selection, state, state.planned + count, now)
        assert entered, "the blocks of its known tokens were promised"
        if selection.written:
            selection.grown[-1] = (state, kv.columns())  # hits and fork copies too
            selection.copies += kv.copies
        selection.admits.append(state)
        if self.shares is not None:
            self.shares.spend(state, count)
            self.shares.note_row(state)
        selection.prefills.append((state, count))
        return count
