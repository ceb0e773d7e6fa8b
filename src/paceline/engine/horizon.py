"""Runs of identical decode steps: how many of the coming plans only let every running row go on by one token, and
planning and applying so many of them at once.

    run = scheduler.horizon()                          None: plan as always
    scheduler.apply_repeated(run, tokens, times)       the first `len(times) - 1` of them are done

Between two arrivals an engine mostly decodes: the same rows, one token each, nobody admitted, nobody ended. Such steps
need no plan to be written down, so a simulator jumps over them, and afterwards the scheduler is where it would have
been. Blocks are taken and published in the order of the steps, so that their ids and the cache's order are the same.

What is assumed of the caller: nothing comes in between, no deadline passes (`wake_time`), the executor drafts nothing
and needs no masks, and no token ends its request but by length. Only engines with one plan in flight have runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec

from paceline.contracts.ports import StepShape
from paceline.contracts.request import RequestOutput
from paceline.engine.apply import Applier
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.prefills import NO_END
from paceline.engine.request_state import RequestState

if TYPE_CHECKING:
    from paceline.engine.plan_builder import PlanBuilder

_GROW, _COMMIT = 0, 1


class DecodeRun(msgspec.Struct, frozen=True):
    """Steps that only decode. The last of them may end requests; none before it does."""

    num_steps: int  # at least 1
    rows: tuple[int, ...]  # in the order of a plan
    request_ids: tuple[int, ...]  # of the rows
    positions: tuple[int, ...]  # output position of the first token that each row draws
    shape: StepShape  # of the first; each later one has one token of context more per row


class Horizon:
    """Looks ahead over the parts of one scheduler; `Scheduler` delegates to it."""

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
        running = self._life.running
        if not running or not self._builder.only_decodes:
            return None
        steps = self._waiting_steps()
        if steps < 1:
            return None
        context = 0
        if self._builder.may_leave_out(running.values()):
            return None
        rows: list[int] = []
        positions: list[int] = []
        for state in running.values():
            planned = state.planned
            if state.known - planned != 1 or state.pending:
                return None
            if not state.is_plain:
                return None
            left = state.limit - state.known
            if left < steps:
                steps = left
            context += planned
            rows.append(state.row)
            positions.append(len(state.output))
        num_rows = len(running)
        available = self._life.kv.num_available
        if num_rows * (steps // self._block_size + 2) * self._num_groups > available:
            steps = self._steps_with_blocks(steps, available)
        if steps < 1:
            return None
        shape = StepShape(
            num_tokens=num_rows,
            num_rows=num_rows,
            num_sampled=num_rows,
            context_tokens=context,
            attention_pairs=context + num_rows,
        )
        return DecodeRun(steps, tuple(rows), tuple(running), tuple(positions), shape)

    def _waiting_steps(self) -> int:
        """Steps for which those who wait keep waiting for the reason that is on record; 0: ask the planner."""
        queue = self._life.queue
        if not queue.num_requests:
            return NO_END
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

    def apply_repeated(
        self, run: DecodeRun, tokens: Sequence[Sequence[int]], times: Sequence[float], *, tell: bool = True
    ) -> None:
        """`tokens[i]` are those of row i of the run, one for each step that is done; `times[j]` is when step j was
        planned and the one before it applied, the last of them the end of the last step (seconds). `tell` False:
        only those hand out an output that have their first token, or their last."""
        life, applier = self._life, self._applier
        num = len(times) - 1
        states = list(life.running.values())
        num_rows = len(states)
        assert 1 <= num <= run.num_steps
        assert num_rows == len(run.rows) == len(tokens)
        life.step += num
        last_step = life.applied_step = life.step - 1
        life.computed_tokens += num * num_rows
        if self._builder.charges is not None:
            self._builder.charges.charge_run(states, num)
        now = times[-1]
        chunks = list(zip(times[1:], repeat(1)))
        before = chunks[:-1]  # of all steps but the last
        computed: list[int] = []
        alone: list[bool] = []  # the last token is looked at by itself
        for state, drawn in zip(states, tokens, strict=True):
            begin = state.computed
            computed.append(begin)
            if begin < state.frontier:
                again = min(begin + num, state.frontier) - begin
                state.wasted_tokens += again
                life.wasted_tokens += again
            state.computed_tokens += num
            state.planned += num
            state.last_step = state.last_draw_step = last_step
            ends = tell or state.known + num >= state.limit or not state.output_tokens or bool(state.rules.stop_ids)
            alone.append(ends)
            if not ends:
                state.output += drawn
                state.known += num
                state.output_tokens += num
                state.timeline.chunks += chunks
                life.output_tokens += num
            elif num > 1:
                self._take_in(state, drawn[: num - 1], before, tell)
        self._blocks(states, computed, num, times)
        for state, begin, drawn, ends in zip(states, computed, tokens, alone, strict=True):
            state.computed = computed_now = begin + num
            if ends:
                applier.one_token(state, drawn[num - 1], 1, now, tell=tell)
            elif state.kv is not None and computed_now >= state.kv.next_commit:
                applier.commit(state, now)
        life.step_done(last_step, now)

    def _take_in(self, state: RequestState, ids: Sequence[int], chunks: list[tuple[float, int]], tell: bool) -> None:
        """Tokens of steps none of which ends the request, and when they came."""
        num = len(ids)
        stop_ids = state.rules.stop_ids
        assert not stop_ids or stop_ids.isdisjoint(ids), "a token in a run ends nothing"
        if tell or not state.output_tokens:
            self._life.outputs.append(RequestOutput(request_id=state.request_id, token_ids=list(ids)))
        state.output += ids
        state.known += num
        state.output_tokens += num
        self._life.output_tokens += num
        state.timeline.chunks += chunks

    def _blocks(self, states: list[RequestState], computed: list[int], num: int, times: Sequence[float]) -> None:
        """What the plans take and the applied steps publish, in their order: by step, plans first, then by row. What
        the last step publishes is left to it."""
        size, kv_manager, commit = self._block_size, self._life.kv, self._applier.commit
        grows: list[tuple[int, int, int]] = []  # step, counted from 1; take or publish; index of the row
        commits: list[tuple[int, int, int]] = []
        for index, state in enumerate(states):
            kv = state.kv
            assert kv is not None
            if (step := state.capacity - computed[index] + 1) <= num:
                grows.append((step, _GROW, index))
            if (step := max(1, kv.next_commit - computed[index])) < num:
                commits.append((step, _COMMIT, index))
        if self._blocks_at_once(states, computed, grows, commits, num, times):
            return
        events = grows + commits
        heapify(events)
        while events:
            step, kind, index = heappop(events)
            state, begin = states[index], computed[index]
            kv = state.kv
            assert kv is not None
            if kind == _GROW:
                new = kv_manager.grow(kv, begin + step)
                assert new is not None, "a run was longer than there are blocks"
                state.capacity = -(-(begin + step) // size) * size
                state.account_blocks(times[step - 1])
                if (step := state.capacity - begin + 1) <= num:
                    heappush(events, (step, _GROW, index))
            else:
                state.computed = begin + step
                commit(state, times[step])
                if (step := max(step + 1, kv.next_commit - begin)) < num:
                    heappush(events, (step, _COMMIT, index))

    def _blocks_at_once(
        self,
        states: list[RequestState],
        computed: list[int],
        grows: list[tuple[int, int, int]],
        commits: list[tuple[int, int, int]],
        num: int,
        times: Sequence[float],
    ) -> bool:
        """The blocks of all steps, in the order of the steps; what is published is left to the end. False: they must
        be taken one by one. Where all that is published is new, the order of both does not matter."""
        if not (grows or commits):
            return True
        size = self._block_size
        published: list[bytes] = []
        for _, _, index in commits:
            state = states[index]
            state.extend_keys()
            assert state.keys is not None
            assert state.kv is not None
            published += state.keys.keys[state.kv.committed : (computed[index] + num) // size]
        every = sorted([(at, index) for step, _, index in grows for at in range(step, num + 1, size)])
        rows = [states[index] for _, index in every]
        if not self._life.kv.grow_rows([state.kv for state in rows if state.kv is not None], published):
            return False
        for state, (step, _) in zip(rows, every, strict=True):
            state.capacity += size
            now = times[step - 1]
            state.kv_block_seconds += state.kv_blocks * (now - state.kv_since)
            state.kv_blocks += 1
            state.kv_since = now
        return True


__all__ = ["DecodeRun", "Horizon"]
