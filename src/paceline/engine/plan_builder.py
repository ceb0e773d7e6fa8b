"""Builds the plan of one step: decode rows, then prefills that have started, then new requests in order.

The one idea: hand out positions under a budget so that planned catches up with known. What is short, blocks or rows,
is taken from whoever matters least; what cannot run now says why.
"""

from __future__ import annotations

from collections.abc import Collection

from paceline.contracts.ports import CostModel, Drafter, ExecutorCaps
from paceline.contracts.step import RowAdmit, StepPlan
from paceline.engine import policies
from paceline.engine.admission import Admission
from paceline.engine.charges import Charges
from paceline.engine.giving_way import GivingWay
from paceline.engine.holding import Holding, can_hold
from paceline.engine.lifecycle import Lifecycle
from paceline.engine.line import TURN
from paceline.engine.plan_columns import Flight, RowColumns, Selection, empty_plan
from paceline.engine.prefills import Prefills
from paceline.engine.prospects import Prospects
from paceline.engine.request_state import NO_ROW, RequestState
from paceline.engine.room import Room
from paceline.engine.settings import SchedulerSettings
from paceline.engine.slack import Slack


class PlanBuilder:
    """`build` changes phases (admit, preempt, refuse what never fits) and counters; it never looks at a clock."""

    def __init__(
        self,
        settings: SchedulerSettings,
        caps: ExecutorCaps,
        cost: CostModel,
        life: Lifecycle,
        admission: Admission,
        drafter: Drafter | None,
    ) -> None:
        self._settings = settings
        self._cost = cost
        self._life = life
        self._admission = admission
        self._max_tokens = caps.max_tokens
        speculate = settings.num_draft_tokens > 0
        self._drafter = drafter if speculate and "host" in caps.spec_kinds else None
        device_drafts = speculate and self._drafter is None and "device" in caps.spec_kinds
        self._want_drafts = settings.num_draft_tokens if device_drafts else 0
        self._speculate = self._drafter is not None or device_drafts
        # a row may draw again before the host has seen its last draw: drafts need the host in between
        self._feedback = caps.device_feedback and not self._speculate
        self.charges = Charges(cost, life.queue) if settings.policy == "fair" else None
        self._decode_cut = False  # prefill_first: decode rows were left out of the last step
        self.room = Room(life, caps.layout)
        self._prospects = Prospects(settings, cost, life)
        self.slack: Slack | None = None
        if settings.by_slack:
            self.slack = Slack(settings, cost, life, self._prospects)
            life.lengths = self._prospects.lengths
        self.prefills = Prefills(settings, cost, life, self.room, self.slack)
        self._giving_way = GivingWay(cost, life)
        # without somebody new, a plan for rows with one token to go holds those and nothing else, now and after it
        self.only_decodes = not self._speculate
        self._holding = Holding(cost, life, self._prospects)
        self.begins = 0.0  # when the plans in flight are expected to have ended

    def may_leave_out(self, running: Collection[RequestState]) -> bool:
        """Some of these rows, which decode, may skip a step for the others."""
        if self.slack is None:
            return False
        if any(map(can_hold, running)):
            return True
        lost = sum(state.is_lost(0.0) for state in running)
        return 0 < lost < len(running)

    def build(self, now: float, write: bool = True) -> tuple[StepPlan | None, Flight | None]:
        """The plan of the step `life.step`, and how to read its result; None with an empty plan. `write` False: what
        the plan would do is done, and no plan is written."""
        selection = Selection(write)
        self._select(selection, now)
        self.only_decodes = not (
            self._speculate or self._decode_cut or self._giving_way.gave_way or self.prefills.is_forming
        )
        if selection.victim_class is not None:
            selection.drop_victims()
        if not selection.decodes and not selection.prefills:
            assert not selection.admits
            return (empty_plan(self._life.step) if write else None), None
        if self.slack is not None and selection.prefills:
            self.slack.note_prompts(selection.prefills, now)
        return self._columns(selection)

    def _select(self, selection: Selection, now: float) -> None:
        settings, life, slack = self._settings, self._life, self.slack
        started = self._select_decodes(selection, now)
        begins, ready = max(now, self.begins), selection.decodes
        if slack is not None:
            ready = self._who_decodes(selection, started, begins, now)
        if settings.prefill_priority == "decode_first" or self._decode_cut:
            was_cut, self._decode_cut = self._decode_cut, False
            num_decode = len(selection.decodes)
            if self._speculate:  # beside all that may yet decode: rows that hold back do when no prompt goes on
                most = settings.max_num_batched_tokens
                num_decode += self._select_drafts(selection, most - (len(ready) - num_decode), now)
            budget = policies.prefill_budget(settings, num_decode, self._max_tokens)
            if slack is not None and (started or life.queue.num_requests):
                budget = slack.budget(selection.decodes, started, budget, now, most_s=self._holding.limit_s)
            self.prefills.select(selection, started, budget, now)
            if slack is not None and selection.prefills:
                self._prospects.note(selection.admits)
                self._holding.hold_back(selection.prefills, selection.decodes, started, begins)
            elif slack is not None:
                selection.decodes = ready  # no prompt can go on in this step: nobody holds back for it
            shares, giving_way = self.prefills.shares, self._giving_way
            # a draft left out would be lost; rows that were just left out run
            if (shares is not None or giving_way.gave_way) and not self._speculate and not was_cut:
                giving_way.choose(selection, shares, now)
        else:
            used = self.prefills.select(selection, started, settings.max_num_batched_tokens, now)
            if used:
                self._cut_decodes(selection, settings.max_num_batched_tokens - used)
            if self._speculate:
                self._select_drafts(selection, settings.max_num_batched_tokens - used, now)

    def _who_decodes(
        self, selection: Selection, started: list[RequestState], begins: float, now: float
    ) -> list[RequestState]:
        """Leave rows out that would make others late, and hold first tokens back; returns the rows before that."""
        assert self.slack is not None
        if self._life.step % TURN:  # one step in so many is for all: nobody starves
            selection.decodes = self.slack.take_part(selection.decodes, now)
        self._prospects.look(selection.decodes)
        if self._life.queue.num_requests:
            rows = [state for state in selection.decodes if state.timeline.chunks]
            self._prospects.cut(started, rows, now, begins=begins)
        ready = selection.decodes
        selection.decodes = self._holding.choose(ready, started, begins)
        return ready

    def _select_decodes(self, selection: Selection, now: float) -> list[RequestState]:
        """Choose every row with one token to go, and see to its blocks; return the rows with more to go."""
        started: list[RequestState] = []
        decodes = selection.decodes
        feedback, make_room = self._feedback, self.room.make
        for state in list(self._life.running.values()):
            if state.row == NO_ROW:
                continue  # a victim by now
            planned, pending = state.planned, state.pending
            ahead = state.known + pending
            if ahead - planned > 1:
                started.append(state)
            elif pending and (not feedback or ahead >= state.limit or state.has_grammar):
                continue  # the host must see the draw in flight first, or that draw is its last
            elif planned < state.capacity or make_room(selection, state, planned + 1, now):
                decodes.append(state)
        if selection.victim_class is not None:  # of rows behind them
            selection.drop_victims()
            started = [state for state in started if state.row != NO_ROW]
        return started

    def _cut_decodes(self, selection: Selection, left: int) -> None:
        """Prefill came first: decode rows get what is left, and the whole of the next step if that was not enough."""
        if selection.victim_class is not None:
            selection.drop_victims()
        if len(selection.decodes) > left:
            self._decode_cut = True
            del selection.decodes[left:]

    def _select_drafts(self, selection: Selection, max_tokens: int, now: float) -> int:
        """Drafts to verify beside the decode rows, as far as tokens and blocks are there. Returns how many."""
        settings = self._settings
        room = max_tokens - len(selection.decodes) - settings.min_prefill_tokens
        total = 0
        for state in selection.decodes:
            most = min(settings.num_draft_tokens, state.limit - state.known - 1, room - total)
            drafts, state.drafts = list(state.drafts), ()  # a device's proposals are for this step or for none
            if most <= 0 or state.row == NO_ROW:
                continue
            if self._drafter is not None:
                drafts = [int(token) for token in self._drafter.propose(state.ids(), most)]
            del drafts[most:]
            end = state.planned + 1 + len(drafts)
            if end > state.capacity and not self.room.grow(selection, state, end, now):
                del drafts[state.capacity - state.planned - 1 :]  # nobody is preempted for a guess
            if drafts:
                selection.drafts[state.request_id] = drafts
                total += len(drafts)
        return total

    def _columns(self, selection: Selection) -> tuple[StepPlan | None, Flight]:
        life, write = self._life, selection.written
        # before rows are added: that moves counters on
        admits = tuple([self._row_admit(state) for state in selection.admits]) if write else ()
        rows = RowColumns(life.step, self._want_drafts, write)
        rows.add_decodes(selection.decodes, selection.drafts)
        for state, count in selection.prefills:
            rows.add_chunk(state, count)
        shape = rows.shape()
        life.computed_tokens += shape.num_tokens
        life.wasted_tokens += rows.wasted
        est_ms = self._cost.step_ms(shape)
        if self.charges is not None:
            self.charges.charge(rows, len(selection.decodes), est_ms)
        releases, life.releases = life.releases, []
        return rows.plan(selection, admits, releases, est_ms) if write else None, rows.flight(shape, est_ms)

    def _row_admit(self, state: RequestState) -> RowAdmit:
        request = state.request
        return RowAdmit(
            row=state.row,
            request_id=state.request_id,
            epoch=state.epoch,
            choice=request.choice,
            token_ids=state.ids().copy(),
            num_prompt=state.num_prompt,
            sampling=request.sampling,
            stop_token_ids=self._admission.stop_token_ids(request),
            grammar=state.has_grammar,
        )
