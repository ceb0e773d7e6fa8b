"""From what was selected to the columns of a `StepPlan`, and to the note that matches its result to requests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from paceline.contracts.ports import StepShape
from paceline.contracts.step import NO_FEED, Int32, Logits, RowAdmit, StepPlan
from paceline.engine.kv_manager import NewBlocks
from paceline.engine.request_state import NO_ROW, RequestState

_NONE = np.empty(0, dtype=np.int32)
_NONE.flags.writeable = False
_NO_BLOCKS = (_NONE, _NONE, _NONE, _NONE)
_NO_COPIES = (_NONE, _NONE)
# plain numbers: reading an enum's value costs a call, and rows are many
_LOGITS_NONE, _LOGITS_LAST, _LOGITS_ALL = Logits.NONE.value, Logits.LAST.value, Logits.ALL.value


def column(values: Sequence[int]) -> Int32:
    """[len(values)] int32."""
    return np.array(values, dtype=np.int32) if values else _NONE


class Selection:
    """What a step will do, while it is being decided. A request preempted meanwhile simply loses its row."""

    __slots__ = ("admits", "copies", "decodes", "drafts", "grown", "prefills", "victim_class", "written")

    def __init__(self, written: bool = True) -> None:
        self.written = written  # a plan will be written of it
        self.decodes: list[RequestState] = []  # one token each, and their drafts
        self.drafts: dict[int, list[int]] = {}  # request id -> draft tokens to verify
        self.prefills: list[tuple[RequestState, int]] = []  # and how many positions
        self.admits: list[RequestState] = []
        self.grown: list[tuple[RequestState, NewBlocks]] = []
        self.copies: list[tuple[int, int]] = []
        self.victim_class: int | None = None  # highest class that lost a residency in this step

    def drop_victims(self) -> None:
        """Take out what was selected for requests that lost their row since."""
        self.decodes = [s for s in self.decodes if s.row != NO_ROW]
        self.prefills = [(s, n) for s, n in self.prefills if s.row != NO_ROW]
        self.grown = [(s, new) for s, new in self.grown if s.row != NO_ROW]


class Flight(msgspec.Struct, frozen=True, eq=False):
    """A plan in flight: which request, at which epoch, each of its rows is. Entries are parallel, in plan order."""

    step: int
    states: list[RequestState]
    epochs: list[int]
    rows: list[int]
    counts: list[int]
    num_drafts: list[int]
    samples: list[int]
    shape: StepShape
    est_ms: float


def empty_plan(step: int) -> StepPlan:
    """A step that does nothing."""
    return _plan(step)


def _plan(
    step: int,
    *,
    releases: Int32 = _NONE,
    admits: tuple[RowAdmit, ...] = (),
    blocks: tuple[Int32, Int32, Int32, Int32] = _NO_BLOCKS,
    copies: tuple[Int32, Int32] = _NO_COPIES,
    rows: tuple[Int32, Int32, Int32, Int32, Int32, Int32, Int32, Int32] = (_NONE,) * 8,
    draft_ids: Int32 = _NONE,
    est_ms: float = 0.0,
) -> StepPlan:
    row, start, count, num_draft, want_drafts, logits, sample, feed_step = rows
    group, block_row, index, block = blocks
    return StepPlan(
        step=step,
        releases=releases,
        admits=admits,
        new_block_group=group,
        new_block_row=block_row,
        new_block_index=index,
        new_block_id=block,
        copy_src=copies[0],
        copy_dst=copies[1],
        row=row,
        start=start,
        count=count,
        num_draft=num_draft,
        want_drafts=want_drafts,
        logits=logits,
        sample=sample,
        feed_step=feed_step,
        draft_ids=draft_ids,
        est_ms=est_ms,
    )


class RowColumns:
    """The row columns under construction. Adding a row also advances the request's counters: from here on it is
    planned. `want_drafts` is the most a device drafter may propose for a row (0: none). `written` False: the columns
    that only an executor reads are left out."""

    __slots__ = (
        "attention_pairs",
        "counts",
        "draft_ids",
        "feeds",
        "logits",
        "num_drafts",
        "prompt_logits",
        "rows",
        "samples",
        "starts",
        "states",
        "step",
        "want_drafts",
        "wants",
        "wasted",
        "written",
    )

    def __init__(self, step: int, want_drafts: int, written: bool = True) -> None:
        self.step = step
        self.written = written
        self.want_drafts = want_drafts
        self.states: list[RequestState] = []
        self.rows: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.num_drafts: list[int] = []
        self.wants: list[int] = []
        self.logits: list[int] = []
        self.samples: list[int] = []
        self.feeds: list[int] = []
        self.draft_ids: list[int] = []
        self.wasted = 0  # positions computed once before
        self.attention_pairs = 0
        self.prompt_logits = 0

    def add_decodes(self, decodes: list[RequestState], drafts: dict[int, list[int]]) -> None:
        """Rows with one known (or in-flight) token to go: each draws. They come first. The hot path."""
        assert not self.states
        step, size = self.step, len(decodes)
        if self.written:
            self.rows += [state.row for state in decodes]
            self.feeds += [state.last_draw_step if state.pending else NO_FEED for state in decodes]
            self.num_drafts += [0] * size
            self.wants += [0] * size
            self.logits += [_LOGITS_LAST] * size
        starts = self.starts
        for state in decodes:
            planned = state.planned
            starts.append(planned)
            state.planned = planned + 1
            state.pending += 1
            state.last_step = state.last_draw_step = step
            if planned < state.frontier:
                state.wasted_tokens += 1
                self.wasted += 1
        self.states += decodes
        self.counts += [1] * size
        self.samples += [1] * size
        self.attention_pairs += sum(starts) + size
        if drafts or self.want_drafts:
            assert self.written, "drafts need a plan that says which"
            self._add_drafts(len(self.states) - size, drafts)

    def _add_drafts(self, first: int, drafts: dict[int, list[int]]) -> None:
        for at in range(first, len(self.states)):
            state = self.states[at]
            proposed = drafts.get(state.request_id, [])
            size = len(proposed)
            self.draft_ids += proposed
            self.counts[at] += size
            self.num_drafts[at] = size
            self.wants[at] = self._want(state)
            self.attention_pairs += sum(range(state.planned + 1, state.planned + size + 1))
            state.planned += size
            state.pending += size

    def _want(self, state: RequestState) -> int:
        return max(0, min(self.want_drafts, state.limit - state.known - 2)) if self.want_drafts else 0

    def add_chunk(self, state: RequestState, count: int) -> bool:
        """`count` positions of a request that has several to go. True if it reaches the last of them and draws."""
        start = state.planned
        end = start + count
        reaches_end = end == state.known + state.pending
        self.states.append(state)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(int(reaches_end))
        shows_all = not state.prompt_logprobs_done and start < state.num_prompt - 1
        if shows_all:
            self.prompt_logits += count
        if self.written:
            self.rows.append(state.row)
            self.num_drafts.append(0)
            self.wants.append(self._want(state) if reaches_end else 0)
            self.logits.append(_LOGITS_ALL if shows_all else _LOGITS_LAST if reaches_end else _LOGITS_NONE)
            self.feeds.append(NO_FEED)
        self.attention_pairs += count * start + count * (count + 1) // 2
        if start < state.frontier:
            again = min(end, state.frontier) - start
            state.wasted_tokens += again
            self.wasted += again
        state.planned = end
        state.last_step = self.step
        if reaches_end:
            state.pending += 1
            state.last_draw_step = self.step
        return reaches_end

    def shape(self) -> StepShape:
        return StepShape(
            num_tokens=sum(self.counts),
            num_rows=len(self.states),
            num_sampled=sum(self.samples) + len(self.draft_ids),
            context_tokens=sum(self.starts),
            attention_pairs=self.attention_pairs,
            num_prompt_logits=self.prompt_logits,
        )

    def flight(self, shape: StepShape, est_ms: float) -> Flight:
        states, epochs = self.states, [state.epoch for state in self.states]
        return Flight(self.step, states, epochs, self.rows, self.counts, self.num_drafts, self.samples, shape, est_ms)

    def plan(self, selection: Selection, admits: tuple[RowAdmit, ...], releases: list[int], est_ms: float) -> StepPlan:
        # one array: a fixed cost once, not once per column
        columns = (
            self.rows,
            self.starts,
            self.counts,
            self.num_drafts,
            self.wants,
            self.logits,
            self.samples,
            self.feeds,
        )
        row, start, count, num_draft, want_drafts, logits, sample, feed_step = np.array(columns, dtype=np.int32)
        copies = selection.copies
        return _plan(
            self.step,
            releases=column(releases),
            admits=admits,
            blocks=_block_columns(selection) if selection.grown else _NO_BLOCKS,
            copies=(column([s for s, _ in copies]), column([d for _, d in copies])) if copies else _NO_COPIES,
            rows=(row, start, count, num_draft, want_drafts, logits, sample, feed_step),
            draft_ids=column(self.draft_ids),
            est_ms=est_ms,
        )


def _block_columns(selection: Selection) -> tuple[Int32, Int32, Int32, Int32]:
    """Group, row, index and id of each block the step's rows get."""
    groups: list[int] = []
    rows: list[int] = []
    indices: list[int] = []
    ids: list[int] = []
    for state, new in selection.grown:
        if not new:
            continue
        of_groups, of_indices, of_ids = zip(*new, strict=True)
        groups += of_groups
        rows += [state.row] * len(of_ids)
        indices += of_indices
        ids += of_ids
    return column(groups), column(rows), column(indices), column(ids)
