"""Runs of identical decode steps: how many of the coming plans only let every running row go on by one token, and
planning and applying so many of them at once.

    run = scheduler.horizon()                          None: plan as always
    scheduler.apply_repeated(run, num, times)          the first `num` of them are done

Between two arrivals an engine mostly decodes: the same rows, one token each, nobody admitted, nobody ended. Such steps
need no plan to be written down, so a simulator jumps over them, and afterwards the scheduler is where it would have
been. Blocks are taken and published in the order of the steps, so that their ids and the cache's order are the same.

What is assumed of the caller: the answers of all requests are known beforehand (`Scheduler.add`), nothing comes in
between, no deadline passes (`wake_time`), the executor drafts nothing and needs no masks, and no token ends its request
but by length. Only engines with one plan in flight have runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import msgspec

from paceline.contracts.ports import StepShape, decoding_shape
from paceline.contracts.request import RequestOutput
from paceline.engine.apply import Applier
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.prefills import NO_END
from paceline.engine.request_state import RequestState

if TYPE_CHECKING:
    from paceline.engine.plan_builder import PlanBuilder

_GROW, _COMMIT = 0, 1


class StepTimes(Protocol):
    """When the steps of a run end (seconds)."""

    def end(self, num: int) -> float:
        """When `num` steps are done; 0: when the first begins."""
        ...

    def ends(self, nums: Sequence[int]) -> list[float]:
        """The same for each of `nums`."""
        ...


class DecodeRun(msgspec.Struct, frozen=True):
    """Steps that only decode. The last of them may end requests; none before it does."""

    num_steps: int  # at least 1
    states: list[RequestState]  # whose rows they are, in the order of a plan
    shape: StepShape  # of the first; each later one has one token of context more per row

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple([state.row for state in self.states])


class Horizon:
    """Looks ahead over the parts of one scheduler; `Scheduler` delegates to it."""

    __slots__ = ("_applier", "_block_size", "_builder", "_life", "_num_groups", "_sliding")

    def __init__(self, builder: PlanBuilder, applier: Applier, life: Lifecycle) -> None:
        self._builder = builder
        self._applier = applier
        self._life = life
        layout = life.kv.layout
        self._block_size = layout.block_size
        self._num_groups = len(layout.groups)
        self._sliding = any(group.window is not None for group in layout.groups)

    def look(self) -> DecodeRun | None:
        """The run that begins at this step boundary. None: the next plan does, or may do, something else."""
        life, builder = self._life, self._builder
        if not life.running or not builder.only_decodes:
            return None
        steps = self._waiting_steps() if life.queue.num_requests else NO_END
        if steps < 1:
            return None
        states = list(life.running.values())
        if builder.slack is not None and builder.may_leave_out(states):
            return None
        context = 0
        for state in states:
            planned = state.planned
            if state.known - planned != 1 or state.answer is None:  # nothing is pending between steps
                return None
            if planned == state.capacity and state.kv is not None and any(state.kv.promised):
                return None  # the last token of a prompt opens a block, which is promised: a plan takes it
            left = state.limit - planned - 1
            if left < steps:
                steps = left
            context += planned
        num_rows = len(states)
        if not life.kv.has(num_rows * (steps // self._block_size + 2) * self._num_groups):
            steps = self._steps_with_blocks(steps, life.kv.num_available)
        if steps < 1:
            return None
        return DecodeRun(steps, states, decoding_shape(num_rows, context))

    def _waiting_steps(self) -> int:
        """Steps for which those who wait keep waiting for the reason that is on record; 0: ask the planner."""
        queue = self._life.queue
        head = queue.peek()
        if head is None or queue.num_parked:
            return 0
        return self._builder.prefills.closed_steps(head, sliding=self._sliding)

    def _steps_with_blocks(self, most: int, available: int) -> int:
        """So many of `most` steps that nobody has to give up blocks for them."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._num_blocks(middle) <= available else (low, middle - 1)
        return low

    def _num_blocks(self, steps: int) -> int:
        """Blocks that the running rows take in so many steps, those that windows give back not counted."""
        size, num = self._block_size, 0
        for state in self._life.running.values():
            beyond = state.planned + steps - state.capacity
            if beyond > 0:
                num += -(-beyond // size)
        return num * self._num_groups

    def apply_repeated(self, run: DecodeRun, num: int, times: StepTimes, tell: bool = True) -> None:
        """The first `num` steps of a run are planned and applied. `tell` False: only those hand out an output that have
        their first token, or their last."""
        life, applier, states, named = self._life, self._applier, run.states, self._life.kv.names_blocks
        assert 1 <= num <= run.num_steps
        assert len(states) == len(life.running), "rows came or went during a run"
        life.step += num
        last_step = life.applied_step = life.step - 1
        life.computed_tokens += num * len(states)
        if self._builder.charges is not None:
            self._builder.charges.charge_run(states, num)
        now = times.end(num)
        chunks = [(time, 1) for time in times.ends(range(1, num + 1))] if life.token_times else None
        grows: list[tuple[int, int]] = []  # step, counted from 1, in which a row takes its next block; index of the row
        publishers: list[int] = []  # rows with blocks to publish before the last step
        looked_at: list[tuple[RequestState, bool]] = []  # and whether its last token is taken in by itself
        at_end = num == run.num_steps  # only its last step can end somebody
        num_quiet = len(states)  # rows of whose tokens nobody is told
        publishes = False
        for index, state in enumerate(states):
            begin = state.computed
            # `last_step` stays behind: nothing of these steps is in flight any more
            state.planned = state.computed = computed = begin + num
            if begin < state.frontier:
                again = min(computed, state.frontier) - begin
                state.wasted_tokens += again
                life.wasted_tokens += again
            if computed > state.capacity:
                grows.append((state.capacity - begin + 1, index))
            if named:  # else there is nothing to publish
                assert state.kv is not None
                next_commit = state.kv.next_commit
                publishes = computed >= next_commit
                if num > 1 and computed > next_commit:
                    publishers.append(index)
            told = state.output_tokens
            if tell or not told or (at_end and computed + 1 >= state.limit) or state.stop_ids:
                looked_at.append((state, True))
                num_quiet -= 1
                if num > 1:
                    self._take_in(state, num - 1, times, chunks, tell)
                continue
            if publishes:
                looked_at.append((state, False))
            state.known = computed + 1
            state.output_tokens = told = told + num
            if chunks is None:
                state.last_token_s = now
            else:
                state.timeline.chunks += chunks
                state.listed_tokens = told
        life.output_tokens += num * num_quiet
        if grows and not named:
            self._blocks_by_count(states, grows, num, times)
        elif (grows or publishers) and not self._blocks_at_once(states, grows, publishers, num, times):
            self._blocks_in_order(states, grows, publishers, num, times)
        for state, ends in looked_at:
            if ends:
                assert state.answer is not None
                applier.one_token(state, state.answer[state.known - state.num_prompt], 1, now, tell)
            else:
                applier.commit(state, now)
        life.step_done(last_step, now)

    def _take_in(
        self, state: RequestState, num: int, times: StepTimes, chunks: list[tuple[float, int]] | None, tell: bool
    ) -> None:
        """Tokens of the first `num` steps, none of which ends the request."""
        assert state.answer is not None
        begin, stop_ids = state.known - state.num_prompt, state.stop_ids
        assert not stop_ids or stop_ids.isdisjoint(state.answer[begin : begin + num]), "a token in a run ends nothing"
        is_first = not state.output_tokens
        if tell or is_first:
            ids = list(state.answer[begin : begin + num])
            self._life.list_rest(state)
            self._life.outputs.append(RequestOutput(request_id=state.request_id, token_ids=ids))
        state.known += num
        if chunks is not None:
            state.output_tokens += num
            self._life.output_tokens += num
            state.timeline.chunks += chunks[:num]
            state.listed_tokens = state.output_tokens
            return
        if is_first:
            self._life.count(state, 1, times.end(1))
            self._life.list_rest(state)
        if num > is_first:
            self._life.count(state, num - is_first, times.end(num))

    def _blocks_in_order(
        self,
        states: list[RequestState],
        grows: list[tuple[int, int]],
        publishers: list[int],
        num: int,
        times: StepTimes,
    ) -> None:
        """What the plans take and the applied steps publish, in their order: by step, plans first, then by row. What
        the last step publishes is left to it."""
        size, kv_manager = self._block_size, self._life.kv
        events = [(step, _GROW, index) for step, index in grows]  # step; take or publish; index of the row
        for index in publishers:
            state = states[index]
            assert state.kv is not None
            events.append((max(1, state.kv.next_commit - state.computed + num), _COMMIT, index))
        heapify(events)
        while events:
            step, kind, index = heappop(events)
            state = states[index]
            begin, kv = state.computed - num, state.kv
            assert kv is not None
            if kind == _GROW:
                new = kv_manager.grow(kv, begin + step)
                assert new is not None, "a run was longer than there are blocks"
                state.capacity = -(-(begin + step) // size) * size
                state.account_blocks(times.end(step - 1))
                if (step := state.capacity - begin + 1) <= num:
                    heappush(events, (step, _GROW, index))
            else:
                self._applier.commit(state, times.end(step), begin + step)
                if (step := max(step + 1, kv.next_commit - begin)) < num:
                    heappush(events, (step, _COMMIT, index))

    def _blocks_by_count(
        self, states: list[RequestState], grows: list[tuple[int, int]], num: int, times: StepTimes
    ) -> None:
        """The blocks of all steps, row by row: nothing else can be told of blocks without names."""
        size = self._block_size
        steps: list[int] = []
        for step, _ in grows:
            steps += range(step - 1, num, size)
        ends = iter(times.ends(steps))
        for step, index in grows:
            state = states[index]
            kv, held, since, seconds = state.kv, state.kv_blocks, state.kv_since, state.kv_block_seconds
            for now in islice(ends, (num - step) // size + 1):
                seconds += held * (now - since)
                held += 1
                since = now
            state.kv_blocks = held
            state.kv_since = since
            state.kv_block_seconds = seconds
            state.capacity = capacity = held * size
            assert kv is not None
            kv.count_to(held, capacity)
        self._life.kv.grow_by_count(len(steps))

    def _blocks_at_once(
        self,
        states: list[RequestState],
        grows: list[tuple[int, int]],
        publishers: list[int],
        num: int,
        times: StepTimes,
    ) -> bool:
        """The blocks of all steps, in the order of the steps; what is published is left to the end. False: they must
        be taken one by one. Where all that is published is new, the order of both does not matter."""
        size = self._block_size
        published: list[bytes] = []
        for index in publishers:
            state = states[index]
            state.extend_keys()
            assert state.keys is not None
            assert state.kv is not None
            published += state.keys.keys[state.kv.committed : state.computed // size]
        if num > size:  # rows may need several
            grows = [(at, index) for step, index in grows for at in range(step, num + 1, size)]
        grows.sort()
        if not self._life.kv.grow_rows([states[index].kv for _, index in grows], published):
            return False
        for (_, index), now in zip(grows, times.ends([step - 1 for step, _ in grows]), strict=True):
            state = states[index]
            held = state.kv_blocks
            state.kv_block_seconds += held * (now - state.kv_since)
            state.kv_blocks = held + 1
            state.kv_since = now
            state.capacity += size
        return True


__all__ = ["DecodeRun", "Horizon", "StepTimes"]
